"""A client that has a checkpoint written, with all the cores and programs that take part."""

import json
from pathlib import Path
from typing import Any

import pytest

from clients import BRIEF, ITEM, USER, alone, each_mode, in_thread, ones
from inprocess import InProcess
from ps_proto.errors import CheckpointFailed, InvalidRequest, StalenessTimeout
from ps_proto.requests import TakeCheckpoint
from ps_proto.values import Async, Mode, Sync
from ps_server.storage.arrays_file import decode


def manifest(cluster: InProcess, number: int) -> Any:
    return json.loads(cluster.kept.files[f"checkpoint-{number:010}/manifest.json"])


@each_mode
def test_a_checkpoint_has_what_was_pushed_and_what_its_rank_resumes_from(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    client.provide_resume(lambda: b"state of clock %d" % client.clock)
    with client:
        for step in range(2):
            client.push({"user": ([step, 7], ones(2)), "item": ([1], ones(1, 2))})
            client.end_step()
        taken = client.checkpoint("/kept")  # the last step is captured, and told to the servers, on the way
        assert (taken.path, taken.number, taken.step, taken.rows) == ("/kept", 1, 2, 4)
        (rank,) = manifest(cluster, 1)["ranks"]
        assert (rank["rank"], rank["clock"]) == (0, 1)
        path = f"checkpoint-0000000001/shard-{rank['shard']}/resume.safetensors"
        resume = decode(cluster.kept.get(path), path)
        assert resume["rank-0"].tobytes() == b"state of clock 2"
        client.push("item", [9], ones(1, 2))
        client.end_step()
        assert client.checkpoint("/kept").number == 2


def test_a_checkpoint_waits_for_the_others_to_finish_the_same_steps() -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 2, Sync()) as first, cluster.connect(1, 2, Sync()) as second:
        first.create_table(ITEM)
        for rank in (first, second):
            rank.push("item", [1], ones(1, 2))
        first.end_step()
        thread, outcome = in_thread(lambda: first.checkpoint("/kept"))
        thread.join(0.2)
        assert not outcome
        second.end_step()
        second.flush()
        thread.join()
        assert outcome[0].step == 1


def test_the_rank_that_a_checkpoint_waits_for_in_vain_is_named() -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 2, Sync(), BRIEF) as first, cluster.connect(1, 2, Sync()):
        first.create_table(ITEM)
        first.end_step()
        with pytest.raises(StalenessTimeout, match=r"Step 1 waited 0\.\d s for rank 1"):
            first.checkpoint("/kept")
        first.disconnect()


def test_a_disk_that_is_full_costs_that_checkpoint_and_nothing_else() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", [1], ones(1, 2))
        cluster.kept.puts_left = 2
        with pytest.raises(CheckpointFailed, match="No space left on device"):
            client.checkpoint("/kept")
        client.push("item", [1], ones(1, 2))
        cluster.kept.puts_left = None
        client.checkpoint("/kept")
        assert client.pull("item", [1]).tolist() == [[-2, -2]]


def test_an_observer_has_one_written_too_in_a_folder_of_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster, client = alone(Async(), 2, ITEM)
    with client, cluster.connect() as observer:
        client.push("item", [1], ones(1, 2))
        assert observer.checkpoint(Path("kept"), full=True).rows == 1
        asked = [body for _, body in cluster.calls if isinstance(body, TakeCheckpoint)]
        assert asked == [TakeCheckpoint(f"{tmp_path}/kept", True, -1, 20.0)]


def test_without_a_root_of_the_clusters_own_a_path_is_needed() -> None:
    _, client = alone(Async())
    with client, pytest.raises(InvalidRequest, match="path is missing"):
        client.checkpoint()
