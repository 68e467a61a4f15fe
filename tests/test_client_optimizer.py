"""Whose hyperparameters are used, and from when on."""

import pytest

from clients import BRIEF, ITEM, MODES, alone, ones
from inprocess import InProcess
from ps_proto.errors import InvalidRequest, StalenessTimeout, TableMismatch
from ps_proto.values import SGD, Adam, Async, Sync, TableSpec


def test_set_optimizer_counts_from_this_step_on() -> None:
    for mode in MODES:
        _, client = alone(mode, 2, ITEM)
        with client:
            client.push("item", [1], ones(1, 2))
            client.end_step()
            client.set_optimizer("item", SGD(10.0))
            client.push("item", [1], ones(1, 2))
            client.end_step()
            assert client.pull("item", [1]).tolist() == [[-11, -11]]
            with pytest.raises(TableMismatch, match="optimizer sgd, but optimizer adam"):
                client.set_optimizer("item", Adam())
            with pytest.raises(InvalidRequest, match="an optimizer such as"):
                client.set_optimizer("item", 0.1)  # type: ignore[arg-type]


def test_the_creators_hyperparameters_are_used_by_those_who_only_use_the_table() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async()) as first, cluster.connect(1, 2) as second:
        first.create_table(TableSpec("item", 2, SGD(2.0)))
        second.push("item", [1], ones(1, 2))
        assert second.pull("item", [1]).tolist() == [[-2, -2]]
        second.create_table(TableSpec("item", 2, SGD(5.0)))
        second.push("item", [1], ones(1, 2))
        assert second.pull("item", [1]).tolist() == [[-7, -7]]


def test_ranks_that_ask_for_other_hyperparameters_of_a_synchronous_table_are_told() -> None:
    cluster = InProcess()
    first, second = cluster.connect(0, 2, Sync(), BRIEF), cluster.connect(1, 2, Sync(), BRIEF)
    first.create_table(TableSpec("item", 2, SGD(2.0)))
    second.create_table(TableSpec("item", 2, SGD(5.0)))
    first.end_step()
    with pytest.raises(StalenessTimeout):
        first.flush()
    second.end_step()
    with pytest.raises(InvalidRequest, match="hyperparameters of table 'item' for step 0 from rank 1"):
        second.flush()
    first.disconnect()
    second.disconnect()
