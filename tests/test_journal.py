"""The coordinator's journal: what a turn changed is stored as one, first of all."""

from typing import Any

import pytest

from driven import SPEC
from ps_proto.errors import InvalidRequest
from ps_proto.orders import Source
from ps_proto.requests import SkippedTurn, StepOrder
from ps_proto.values import BoundedStaleness
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.stored import (
    CHECKPOINT,
    CLUSTER,
    JOB,
    MAP,
    ORIGIN,
    ROLLBACK,
    Stored,
    StoredAdmission,
    StoredBranch,
    StoredCheckpoint,
    StoredCluster,
    StoredHolder,
    StoredJob,
    StoredMap,
    StoredNonce,
    StoredOrigin,
    StoredRank,
    StoredRemoval,
    StoredRollback,
    StoredServer,
    StoredStand,
    StoredTable,
    rank_key,
    server_key,
    table_key,
)
from ps_server.events import Persist
from ps_server.tasks import BarrierRun
from samples import SHARD_MAP, same
from sharding.shard_map import Server

CLUSTER_STORED = StoredCluster(2**64 - 1, 7, 3, 2, 9, 4, 1, 12)
ORDERS = (StepOrder(1, "admit", 2, 1),)
HOLDERS = (StoredHolder(2, "spare", 7),)
ADMITTED = (StoredAdmission(2, 7),)
REMOVALS = (StoredRemoval(2, 5), StoredRemoval(1, -1))
MINIMA = (BarrierRun(60, -5, 9), BarrierRun(69, 2**63 - 1, turns=(4, 7)))
STANDS = (StoredStand(2, 70, (SkippedTurn(68, 4), SkippedTurn(70, 7))),)
STORED = {
    CLUSTER: CLUSTER_STORED,
    MAP: StoredMap(SHARD_MAP, True),
    server_key("a/b"): StoredServer(Server("a/b", "host:1", 3, 2.0), 2**64 - 1, True),
    table_key("user"): StoredTable(SPEC, 4, False),
    JOB: StoredJob(
        9, 3, BoundedStaleness(2), 5, "continue", (1,), (1,), 70, MINIMA, MINIMA[:1], 2, ORDERS, HOLDERS, ADMITTED, REMOVALS, STANDS
    ),
    rank_key(12): StoredRank(4, True, False, (StoredNonce(8, 3), StoredNonce(2**64 - 1, 4))),
    CHECKPOINT: StoredCheckpoint("s3://bucket/here", 12, 400),
    ROLLBACK: StoredRollback(2, True, (StoredBranch(1, 4), StoredBranch(2, 9))),
    ORIGIN: StoredOrigin(Source("/there", 11), 2**64 - 1, "/there#11"),
}


def journal_of(values: dict[str, Any]) -> Journal:
    journal = Journal()
    for key, value in values.items():
        journal.put(key, value)
    return journal


def test_nothing_changed_is_nothing_to_store() -> None:
    journal = Journal()
    assert journal.take() is None
    journal.put(CLUSTER, CLUSTER_STORED)
    assert journal.take() is not None
    assert journal.take() is None


def test_of_one_key_the_last_word_counts() -> None:
    journal = journal_of({CLUSTER: StoredCluster(1, 1, 1), JOB: STORED[JOB]})
    journal.put(CLUSTER, CLUSTER_STORED)
    journal.delete(JOB)
    journal.delete(MAP)
    journal.put(MAP, STORED[MAP])
    persist = journal.take()
    assert persist is not None
    assert set(persist.puts) == {CLUSTER, MAP}
    assert persist.deletes == {JOB}
    assert Stored.of(persist.puts) == Stored(CLUSTER_STORED, StoredMap(SHARD_MAP, True))


def test_what_is_stored_comes_back_as_it_was() -> None:
    persist = journal_of(STORED).take()
    assert isinstance(persist, Persist)
    stored = Stored.of(persist.puts)
    assert stored is not None
    back = {
        CLUSTER: stored.cluster,
        MAP: stored.shard_map,
        server_key("a/b"): stored.servers["a/b"],
        table_key("user"): stored.tables["user"],
        JOB: stored.job,
        rank_key(12): stored.ranks[12],
        CHECKPOINT: stored.checkpoint,
        ROLLBACK: stored.rollback,
        ORIGIN: stored.origin,
    }
    assert back.keys() == persist.puts.keys()
    for key, value in back.items():
        assert same(value, STORED[key]), key


def test_nothing_stored_is_a_new_cluster() -> None:
    assert Stored.of({}) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({CLUSTER: None}, "the stored 'cluster' is missing"),
        ({JOB: b"\xff"}, "the stored 'job' is 1 bytes, but must be a StoredJob"),
        ({"later": b""}, "the stored 'later' is there, but must be a key that this release knows"),
        ({"rank/x": b""}, "the stored 'rank/x' is there, but must be a key that this release knows"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(change: dict[str, Any], sentence: str) -> None:
    persist = journal_of(STORED).take()
    assert persist is not None
    state = {key: data for key, data in ({**persist.puts, **change}).items() if data is not None}
    with pytest.raises(InvalidRequest, match=sentence):
        Stored.of(state)


# --- numbers -------------------------------------------------------------------------------------------------------------------


def test_a_number_is_given_once_in_all_lives_of_a_coordinator() -> None:
    jobs, creations, terms = [], [], []
    stored = None
    for life in range(3):
        journal = Journal()
        numbering = Numbering(CoreSettings(2, cluster=100 + life), stored, journal)
        terms.append(numbering.term)
        jobs += [numbering.next_job() for _ in range(2)]
        creations.append(numbering.next_creation())
        persist = journal.take()
        assert persist is not None
        stored = Stored.of(persist.puts).cluster  # type: ignore[union-attr]  # something is stored
    assert (terms, jobs, creations) == ([1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3])
    assert stored is not None
    assert stored.cluster == 100, "a cluster keeps its id"


def test_a_cluster_is_not_started_again_with_another_number_of_servers() -> None:
    with pytest.raises(InvalidRequest, match="servers is 2, but must be 3, as when this cluster was started"):
        Numbering(CoreSettings(2), CLUSTER_STORED, Journal())
