"""What a worker is told by its environment."""

import os
from dataclasses import replace

from ps_worker.launch.supervisor import Plan, worker_environment

PLAN = Plan(servers=2, workers=2, command=("train.py",), host="127.0.0.1", log_dir=None, log_level="info")


def test_a_worker_is_told_its_place() -> None:
    environment = worker_environment(PLAN, "127.0.0.1:7070", 1, {"RANK": "9", "HOME": "/home"})
    assert {
        name: environment[name] for name in ("ROWSTEAD_COORDINATOR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOME")
    } == {
        "ROWSTEAD_COORDINATOR": "127.0.0.1:7070",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "HOME": "/home",
    }


def test_workers_share_the_cores_and_servers_change_nothing() -> None:
    cores = len(os.sched_getaffinity(0))
    for workers in (1, 2, 1000):
        for servers in (1, 5):  # threads cut torch's sums: with them, the bits would depend on the servers
            threads = worker_environment(replace(PLAN, workers=workers, servers=servers), "a:1", 0, {})["OMP_NUM_THREADS"]
            assert threads == str(max(1, cores // workers))


def test_workers_import_the_plugins_of_the_job_and_those_that_the_user_named() -> None:
    plan = replace(PLAN, plugins="one,two")
    assert worker_environment(plan, "a:1", 0, {})["ROWSTEAD_PLUGINS"].strip(",") == "one,two"
    assert worker_environment(plan, "a:1", 0, {"ROWSTEAD_PLUGINS": "three"})["ROWSTEAD_PLUGINS"] == "one,two,three"
    assert "ROWSTEAD_PLUGINS" not in worker_environment(PLAN, "a:1", 0, {})


def test_what_the_user_set_stays() -> None:
    environment = worker_environment(PLAN, "a:1", 0, {"OMP_NUM_THREADS": "64", "PYTHONUNBUFFERED": ""})
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONUNBUFFERED"]) == ("64", "")


def test_workers_are_told_how_rows_travel() -> None:
    assert worker_environment(PLAN, "a:1", 0, {})["ROWSTEAD_TRANSPORT"] == "auto"
    plan = replace(PLAN, transport="tcp")
    assert worker_environment(plan, "a:1", 0, {"ROWSTEAD_TRANSPORT": "unix"})["ROWSTEAD_TRANSPORT"] == "tcp"


def test_workers_are_told_to_say_where_their_time_went() -> None:
    assert "ROWSTEAD_PROFILE" not in worker_environment(PLAN, "a:1", 0, {})
    assert worker_environment(PLAN, "a:1", 0, {"ROWSTEAD_PROFILE": "1"})["ROWSTEAD_PROFILE"] == "1"  # as the user said
    assert worker_environment(replace(PLAN, profile=True), "a:1", 0, {"ROWSTEAD_PROFILE": "0"})["ROWSTEAD_PROFILE"] == "1"


def test_a_worker_that_is_started_again_is_told_its_job_and_another_launchers_is_not_handed_on() -> None:
    assert worker_environment(PLAN, "a:1", 0, {"ROWSTEAD_JOB": "5"})["ROWSTEAD_JOB"] == ""
    assert worker_environment(PLAN, "a:1", 0, {"ROWSTEAD_JOB": "5"}, 7)["ROWSTEAD_JOB"] == "7"
