"""What a user gets wrong is said in a sentence, and changes nothing."""

from typing import Any

import numpy as np
import pytest

from clients import ITEM, USER, alone, ones
from ps_proto.errors import InvalidRequest, TableFull, TableMismatch, UnknownTable
from ps_proto.values import SGD, Async, Sync, TableSpec, Uniform


@pytest.mark.parametrize(
    ("ids", "gradients", "sentence"),
    [
        ([1], ones(1, 4), "rows of table 'user' is float32[1, 4], but must be float32[1, 3]. Nothing was applied."),
        ([1, 2], ones(1), "rows of table 'user' is float32[1, 3], but must be float32[2, 3]. Nothing was applied."),
        ([1], np.ones((1, 3)), "rows of table 'user' is float64[1, 3], but must be float32[1, 3]. Nothing was applied."),
        ([1], np.ones(3, np.float32), "rows of table 'user' is float32[3], but must be float32[1, 3]. Nothing was applied."),
        ([1], None, "rows of table 'user' is object[], but must be float32[1, 3]. Nothing was applied."),
        ([1.5], ones(1), "ids of table 'user' is float64[1], but must be uint64[n] or int64[n]. Nothing was applied."),
        ([[1]], ones(1), "ids of table 'user' is int64[1, 1], but must be uint64[n] or int64[n]. Nothing was applied."),
        ([True], ones(1), "ids of table 'user' is bool[1], but must be uint64[n] or int64[n]. Nothing was applied."),
        ([1], ones(1, 3, np.nan), "rows of table 'user' is not finite (inf or nan), but must be finite everywhere. Nothing was applied."),
        ([1], ones(1, 3, -np.inf), "rows of table 'user' is not finite (inf or nan), but must be finite everywhere. Nothing was applied."),
    ],
)
def test_a_wrong_push_is_refused_in_a_sentence_and_changes_nothing(ids: Any, gradients: Any, sentence: str) -> None:
    _, client = alone(Sync())
    with client:
        for write in (client.push, client.assign):
            with pytest.raises(InvalidRequest) as raised:
                write("user", ids, gradients)
            assert str(raised.value) == sentence
        with pytest.raises(InvalidRequest):
            client.push_async("user", ids, gradients)
        client.end_step()
        assert client.export("user")[0].size == 0
        client.push("user", [1], ones(1))  # it goes on


def test_sums_of_repeats_that_overflow_are_refused() -> None:
    _, client = alone()
    with client:
        with pytest.raises(InvalidRequest, match="not finite"):
            client.push("user", [1, 1], ones(2, 3, 3e38))
        client.push("user", [1], ones(1))


@pytest.mark.parametrize("action", ["pull", "push", "assign", "export", "set_optimizer"])
def test_an_unknown_table_is_named(action: str) -> None:
    _, client = alone()
    arguments: dict[str, tuple[Any, ...]] = {"pull": ([1],), "push": ([1], ones(1)), "assign": ([1], ones(1)), "set_optimizer": (SGD(),)}
    with client, pytest.raises(UnknownTable, match=r"There is no table named 'nobody'\. Create it first"):
        getattr(client, action)("nobody", *arguments.get(action, ()))


@pytest.mark.parametrize("table", [5, None, ["user"], b"user"])
def test_a_table_that_is_no_name_is_refused(table: Any) -> None:
    _, client = alone()
    with client:
        for attempt in (
            lambda: client.pull(table, [1]),
            lambda: client.push(table, [1], ones(1)),
            lambda: client.export(table),
            lambda: client.pull({5: [1]}),  # type: ignore[dict-item]
        ):
            with pytest.raises(InvalidRequest, match="a table's name, or a dict by name"):
                attempt()


def test_a_dict_that_is_no_dict_of_pairs_is_refused() -> None:
    _, client = alone()
    with client, pytest.raises(InvalidRequest, match="a pair \\(ids, rows\\)"):
        client.push({"user": [1, 2, 3]})  # type: ignore[dict-item]


def test_a_differing_spec_is_refused_and_the_same_one_is_not() -> None:
    cluster, client = alone()
    with client, cluster.connect() as observer:
        assert client.create_table(USER) == USER
        assert client.create_table(TableSpec("user", 3, SGD(0.5), Uniform(-0.5, 0.5), seed=7)).optimizer == SGD(0.5)
        with pytest.raises(TableMismatch, match="Table 'user' exists with dim 3, but dim 4 was asked for"):
            client.create_table(TableSpec("user", 4))
        with pytest.raises(InvalidRequest):
            client.create_table("user")  # type: ignore[arg-type]
        assert observer.pull("user", [1]).shape == (1, 3)


def test_a_full_table_refuses_and_the_worker_goes_on() -> None:
    _, client = alone(Async(), 1, ITEM, rows_max=3)
    with client:
        with pytest.raises(TableFull, match="Table 'item' has no room beyond 3 rows"):
            client.push("item", np.arange(4), ones(4, 2))
        client.push("item", np.arange(3), ones(3, 2))
        assert client.export("item")[0].tolist() == [0, 1, 2]


def test_repeats_whose_sum_overflows_on_one_of_two_servers_are_refused_whole() -> None:
    _, client = alone(Async(), 2, ITEM)
    with client:
        rows = ones(41, 2)
        rows[0] = rows[40] = 3e38
        with pytest.raises(InvalidRequest, match="once repeats are summed"):
            client.push("item", [*range(40), 0], rows)
        assert client.export("item")[0].size == 0
        client.push("item", [1], ones(1, 2))


def test_numbers_of_numpy_are_numbers() -> None:
    _, client = alone(Async(), 1, TableSpec("item", np.int64(2), seed=np.uint64(2**64 - 1)))  # type: ignore[arg-type]
    with client:
        assert client.pull_async("item", [1], clock=np.int64(0)).result().shape == (1, 2)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="clock"):
            client.pull_async("item", [1], clock="a")  # type: ignore[arg-type]
