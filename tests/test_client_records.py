"""Rows with their state, and tables that are cleared."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from clients import ITEM, MOMENTS, USER, alone, each_mode, ones, records_of
from inprocess import PATIENT, Fault
from ps_proto.errors import InvalidRequest, ObserverCannot, UnknownTable
from ps_proto.requests import ClearTable
from ps_proto.values import Adagrad, Async, Mode, TableSpec
from ps_worker.records import Records


def arrays_of(records: Records) -> list[npt.NDArray[Any]]:
    return [records.ids, records.rows, *records.state.values()]


@pytest.mark.parametrize("servers", [1, 2, 5])
@each_mode
def test_records_go_into_any_number_of_servers(servers: int, mode: Mode) -> None:
    _, source = alone(mode, 2, MOMENTS)
    _, target = alone(mode, servers, MOMENTS)
    with source, target:
        for _ in range(2):
            source.push("user", np.arange(40), np.arange(120, dtype=np.float32).reshape(40, 3))
            source.end_step()
        saved = records_of(source, "user")
        target.restore("user", saved)
        back = records_of(target, "user")
        assert saved.state["t"].tolist() == [[2]] * 40
        assert list(saved.state) == ["m", "v", "t"]
        assert [(array.dtype, array.tobytes()) for array in arrays_of(back)] == [
            (array.dtype, array.tobytes()) for array in arrays_of(saved)
        ]
        for client in (source, target):
            client.push("user", [1], ones(1))
            client.end_step()
        assert target.pull("user", [1]).tobytes() == source.pull("user", [1]).tobytes()


def test_records_of_an_empty_table_have_no_part() -> None:
    _, client = alone(Async(), 2, MOMENTS)
    with client:
        assert list(client.export_records("user")) == []


def test_a_table_of_another_kind_does_not_take_the_records() -> None:
    _, source = alone(Async(), 2, MOMENTS)
    _, target = alone(Async(), 2, TableSpec("user", 3, Adagrad()))
    with source, target:
        source.push("user", np.arange(40), ones(40))
        with pytest.raises(InvalidRequest, match=r"m float32\[3\], v float32\[3\], t uint32\[1\], but must be sum_of_squares float32\[3\]"):
            target.restore("user", records_of(source, "user"))
        assert target.export("user")[0].size == 0
        target.push("user", [1], ones(1))  # nothing is unfinished


@each_mode
def test_a_cleared_table_is_as_new_on_every_server(mode: Mode) -> None:
    _, client = alone(mode, 3, USER, ITEM)
    with client:
        new = client.pull("user", np.arange(40))
        for _ in range(2):
            client.push({"user": (np.arange(40), ones(40)), "item": ([1], ones(1, 2))})
            client.end_step()
        client.clear("user")
        assert client.export("user")[0].size == 0
        assert client.pull("user", np.arange(40)).tobytes() == new.tobytes()
        assert client.export("item")[0].tolist() == [1]


def test_a_clearing_whose_answer_is_lost_happens_once() -> None:
    cluster, client = alone(Async(), 2, ITEM, patience=PATIENT)
    with client:
        client.push("item", np.arange(40), ones(40, 2))
        cluster.faults.append(Fault(ClearTable, "server-1:0"))
        client.clear("item")
        assert [type(body) for _, body in cluster.calls].count(ClearTable) == 3
        client.push("item", np.arange(40), ones(40, 2))
        assert client.pull("item", np.arange(40)).tolist() == ones(40, 2, -1.0).tolist()


def test_an_observer_neither_restores_nor_clears() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client, cluster.connect() as observer:
        client.push("item", [1], ones(1, 2))
        with pytest.raises(ObserverCannot, match="clear a table"):
            observer.clear("item")
        with pytest.raises(ObserverCannot, match="restore rows"):
            observer.restore("item", records_of(observer, "item"))
        assert client.spec("item") == ITEM
        with pytest.raises(UnknownTable):
            client.spec("nobody's")
