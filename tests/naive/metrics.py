"""The slow twins of examples/metrics.py: every pair of rows, one by one."""

import math
from collections.abc import Sequence


def auc(labels: Sequence[float], scores: Sequence[float]) -> float:
    """Return the share of (click, other) pairs in which the click scores higher; a tie counts as one half. O(n²)."""
    wins, pairs = 0.0, 0
    for label, score in zip(labels, scores, strict=True):
        for other_label, other_score in zip(labels, scores, strict=True):
            if label == 1 and other_label == 0:
                pairs += 1
                wins += 1.0 if score > other_score else 0.5 if score == other_score else 0.0
    return wins / pairs


def log_loss(labels: Sequence[float], logits: Sequence[float]) -> float:
    """Return the mean of -log p(label), straight from the definition."""
    losses = []
    for label, logit in zip(labels, logits, strict=True):
        click = 1.0 / (1.0 + math.exp(-logit))
        losses.append(-math.log(click) if label == 1 else -math.log(1.0 - click))
    return sum(losses) / len(losses)
