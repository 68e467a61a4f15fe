"""The random generators that a script has without asking: their states, as plain data, bring back what comes next."""

import random
import sys

import numpy as np
import pytest
import torch

from ps_worker.resume.packing import pack, unpack
from ps_worker.resume.rngs import rng_states, set_rng_states


def drawn() -> tuple[float, ...]:
    """Some numbers of each generator; an odd number of normal ones, of which they make two at a time."""
    numpy_s = (np.random.random(), np.random.standard_normal())  # noqa: NPY002  # the global one
    return (random.random(), random.gauss(0, 1), *numpy_s, *torch.rand(3).tolist(), *torch.randn(3).tolist(), torch.randn(()).item())


@pytest.mark.parametrize("draws_before", [0, 1, 700])
def test_what_comes_next_comes_again(draws_before: int) -> None:
    for _ in range(draws_before):
        drawn()
    states = unpack(pack(rng_states()))
    first = drawn()
    assert drawn() != first
    set_rng_states(states)
    assert drawn() == first


def test_without_torch_they_are_pythons_and_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    states = rng_states()
    assert sorted(states) == ["numpy", "python"]
    first = random.random()
    set_rng_states(states)
    assert random.random() == first


def test_they_are_some_10_kb() -> None:
    assert len(pack(rng_states())) < 11_000
