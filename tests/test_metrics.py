import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metrics import auc, log_loss
from naive import metrics as naive

Floats = npt.NDArray[np.float32]
Metric = Callable[[Floats, Floats], float]


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def arrays(rows: list[tuple[int, float]]) -> tuple[Floats, Floats]:
    return floats(*(label for label, _ in rows)), floats(*(score for _, score in rows))


def test_a_perfect_order_has_auc_1_and_its_reverse_0() -> None:
    labels, scores = arrays([(0, -2.0), (0, -1.0), (1, 0.5), (1, 3.0)])
    assert auc(labels, scores) == 1.0
    assert auc(labels, -scores) == 0.0


def test_equal_scores_count_as_one_half() -> None:
    labels, scores = arrays([(0, 7.0), (1, 7.0), (1, 7.0), (0, 7.0), (0, 7.0)])
    assert auc(labels, scores) == 0.5


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([-1.5, -0.0, 0.0, 0.25, 0.5, 9.0])), min_size=2, max_size=40))
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, float]]) -> None:
    labels, scores = arrays(rows)
    assume(0 < labels.sum() < len(labels))
    assert auc(labels, scores) == pytest.approx(naive.auc(labels.tolist(), scores.tolist()), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(-12, 12, width=32)), min_size=1, max_size=40))
def test_log_loss_is_its_definition(rows: list[tuple[int, float]]) -> None:
    labels, logits = arrays(rows)
    assert log_loss(labels, logits) == pytest.approx(naive.log_loss(labels.tolist(), logits.tolist()), rel=1e-6)


def test_log_loss_of_a_model_without_an_opinion_is_log_2() -> None:
    assert log_loss(floats(0, 1, 1), np.zeros(3, np.float32)) == pytest.approx(math.log(2))


def test_log_loss_of_a_sure_and_wrong_model_is_large_and_finite() -> None:
    assert log_loss(floats(1, 0), floats(-1000, 1000)) == 1000.0


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_one_class_is_an_error_that_says_so(label: int) -> None:
    with pytest.raises(ValueError, match=f"{3 * label} of 3 rows are clicks"):
        auc(np.full(3, label, np.float32), np.zeros(3, np.float32))


@pytest.mark.parametrize("metric", [auc, log_loss])
def test_a_score_that_is_no_number_is_an_error(metric: Metric) -> None:
    with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
        metric(floats(0, 1), floats(0.5, np.nan))


@pytest.mark.parametrize("metric", [auc, log_loss])
def test_labels_and_scores_of_different_lengths_are_an_error(metric: Metric) -> None:
    with pytest.raises(ValueError, match="of one length"):
        metric(floats(0, 1), floats(0.5))
