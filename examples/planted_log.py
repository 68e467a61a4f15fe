"""A made-up click log, drawn from a planted logistic model: so the best AUC and log loss that can be reached are known."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from click_log import CATEGORIES, COUNTS, VALUE_BITS

VOCABULARY_SIZES = np.geomspace(3, 600, CATEGORIES).astype(np.int64)  # of the 26 fields: some tiny, some with a long tail, as in real logs
ZIPF_EXPONENT = 1.1
CATEGORY_WEIGHT_STD = 0.4
COUNT_WEIGHT_STD = 0.2
MEAN_LOGIT = -1.5  # about one click in four: a small log then holds enough of them
MISSING_COUNTS = 0.1
MISSING = -1  # written as an empty field


@dataclass(frozen=True)
class PlantedLog:
    """What was drawn, row by row: labels float32[n], and the planted model's own logits float64[n], which no model can beat on average."""

    labels: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float64]


def write_planted_log(path: Path, rows: int, seed: int) -> PlantedLog:
    """Write `rows` lines in Criteo's format to `path` (gzip where the name ends in .gz) and return the truth behind them.

    The categories of a field follow Zipf's law over its vocabulary; in every other field the second most frequent one is "missing".
    Counts are log-normal, a tenth of them missing. The logit is a bias, plus a weight for each category, plus weights times log(1 + count).
    A pure function of (rows, seed) for one version of numpy.
    """
    random = np.random.default_rng(seed)
    counts = np.floor(random.lognormal(1.0, 1.2, (rows, COUNTS))).astype(np.int64)
    counts[random.random(counts.shape) < MISSING_COUNTS] = MISSING
    logits = np.log1p(np.maximum(counts, 0)) @ random.normal(0.0, COUNT_WEIGHT_STD, COUNTS)
    values = np.empty((rows, CATEGORIES), np.int64)
    for field, size in enumerate(VOCABULARY_SIZES):
        vocabulary = random.integers(1, 2**VALUE_BITS, size)
        if field % 2:
            vocabulary[1] = MISSING
        share = np.arange(1, size + 1) ** -ZIPF_EXPONENT
        drawn = random.choice(size, rows, p=share / share.sum())
        values[:, field] = vocabulary[drawn]
        logits += random.normal(0.0, CATEGORY_WEIGHT_STD, size)[drawn]
    logits += MEAN_LOGIT - logits.mean()
    labels = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as stream:
        stream.writelines(_lines(labels, counts, values))
    return PlantedLog(labels, logits)


def _lines(labels: npt.NDArray[np.float32], counts: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> Iterator[str]:
    for label, row_counts, row_values in zip(labels.tolist(), counts.tolist(), values.tolist(), strict=True):
        numbers = ["" if count == MISSING else str(count) for count in row_counts]
        categories = ["" if value == MISSING else f"{value:x}" for value in row_values]
        yield "\t".join((f"{label:.0f}", *numbers, *categories)) + "\n"
