"""`rowstead launch`, with real processes: what it shows, how it ends, and that nothing is left however it ends."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from full_pipe import FullPipe
from polling import poll_until
from procs.launched import END_TIMEOUT_S, Launched, launched, runs, wait_until_gone
from procs.started import ROWSTEAD

TRAIN = """
import sys
import numpy as np
import ps_worker as ps

def main():
    with ps.init(mode=ps.Sync()) as session:
        client, ids = session.client, np.arange(100)
        client.create_table(ps.TableSpec("rows", dim=2, optimizer=ps.SGD(lr=1.0)))
        for step in range(5):
            client.push("rows", ids, -np.full((100, 2), session.rank + 1, np.float32))
            client.end_step()
        client.flush()
        print("rank", session.rank, "of", session.world_size, sys.argv[1:], sorted(set(client.pull("rows", ids).ravel().tolist())))

if __name__ == "__main__":
    main()
"""

WAIT = """
import time
print("waiting", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Run a job with checkpoints to its end, whose workers print their profiles."""
    folder = tmp_path_factory.mktemp("ended")
    flags = ("--profile", f"--checkpoints={folder / 'checkpoints'}", "--checkpoint-every-steps=2")
    with launched(folder, TRAIN, "--servers", "9", "-h", servers=2, flags=flags) as launch:
        assert launch.wait() == 0, launch.err
        yield launch


def test_a_job_runs_to_its_end(ended: Launched) -> None:
    sums = [5 * (1 + 2) / 2]  # five steps, each the mean over both ranks
    assert sorted(ended.out.splitlines()) == [f"worker-{rank} | rank {rank} of 2 ['--servers', '9', '-h'] {sums}" for rank in (0, 1)]
    assert list(ended.pids()) == ["coordinator", "server-0", "server-1", "worker-0", "worker-1"]
    for server in ("server-0", "server-1"):
        assert f"{server} | " in ended.err
    assert ended.err.count("stopping") == 3  # asked, not killed


def test_the_jobs_end_is_in_a_checkpoint(ended: Launched) -> None:
    (number, folder) = re.findall(r"The job's end is in checkpoint (\d+) in (\S+)\.", ended.said()[-1])[0]
    manifest = json.loads((Path(folder) / f"checkpoint-{int(number):010}" / "manifest.json").read_text())
    assert (manifest["step"], [table["name"] for table in manifest["tables"]]) == (5, ["rows"])


def test_each_rank_says_where_its_time_went(ended: Launched) -> None:
    for rank in (0, 1):
        lines = [line.removeprefix(f"worker-{rank} | ") for line in ended.err.splitlines() if line.startswith(f"worker-{rank} | ")]
        assert [line for line in lines if line.startswith(f"Profile of rank {rank} of 2, Sync(")], ended.err
        assert sum(["blocked in pushes and ends of steps" in line for line in lines]) == 1
        assert [line for line in lines if line.startswith("server-0 used ")]
        assert lines[-1].endswith(".")


PRINTING = """
import os, sys
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
    print(name, os.environ[name])
for number in range(200):
    print(number, os.environ["RANK"] * 5000)
for percent in range(101):
    print(f"\\r{percent}%", end="", file=sys.stderr)
print(file=sys.stderr)
print("no end", end="")
"""


def test_lines_stay_whole_under_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with launched(tmp_path, PRINTING, flags=(f"--log-dir={tmp_path / 'logs'}",)) as launch:
        assert launch.wait() == 0, launch.err
        for rank in (0, 1):
            lines = [line.removeprefix(f"worker-{rank} | ") for line in launch.out.splitlines() if line.startswith(f"worker-{rank} | ")]
            place = [f"RANK {rank}", "WORLD_SIZE 2", f"LOCAL_RANK {rank}", "LOCAL_WORLD_SIZE 2", "OMP_NUM_THREADS 7"]
            assert lines == [*place, *(f"{number} {str(rank) * 5000}" for number in range(200)), "no end"]
            bar = [line for line in launch.err.splitlines() if line.startswith(f"worker-{rank} | ")]
            assert (bar[0], bar[-1]) == (f"worker-{rank} | 0%", f"worker-{rank} | 100%")
            assert len(bar) < 10
            assert sorted((tmp_path / "logs" / f"worker-{rank}.log").read_text().splitlines()) == sorted(
                [*lines, *(line.removeprefix(f"worker-{rank} | ") for line in bar)]
            )
        assert len(launch.out.splitlines()) == 2 * 206
        assert "serving" in (tmp_path / "logs" / "server-0.log").read_text()


FAILING = """
import os, time
if os.environ["RANK"] == "0":
    time.sleep(1000)
print("the first line")
print("the last line", end="")
os._exit(3)
"""


def test_a_worker_that_fails_ends_the_job_with_its_last_lines_and_its_code(tmp_path: Path) -> None:
    with launched(tmp_path, FAILING) as launch:
        assert launch.wait() == 3
        assert launch.said()[1:] == ["worker-1 ended with exit code 3. Its last lines:", "the first line", "the last line"]
        assert "worker-1 | the last line" in launch.out.splitlines()


FAILING_ONCE = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
print("start of", os.environ["RANK"], os.environ["MASTER_PORT"], flush=True)
if os.environ["RANK"] == "1" and not (here / "failed").exists():
    (here / "failed").touch()
    os._exit(3)
while not (here / "go").exists():
    time.sleep(0.02)
"""


def test_what_fails_is_started_again_where_it_was(tmp_path: Path) -> None:
    with launched(tmp_path, FAILING_ONCE, str(tmp_path), max_restarts=1) as launch:
        launch.wait_for("worker-1 runs again as process")
        launch.wait_for("start of 1", times=2)
        first = launch.pids()
        os.kill(first["coordinator"], signal.SIGKILL)
        launch.wait_for("coordinator runs again as process")
        assert launch.pids()["coordinator"] != first["coordinator"]
        (tmp_path / "go").touch()
        assert launch.wait() == 0
        assert launch.said()[1:] == [
            "worker-1 ended with exit code 3; it is started again in 0.5 s (1 of 1 restarts).",
            f"worker-1 runs again as process {first['worker-1']}.",
            "coordinator was killed by SIGKILL; it is started again in 0.5 s (1 of 1 restarts).",
            f"coordinator runs again as process {launch.pids()['coordinator']}.",
        ]
        starts = sorted(line for line in launch.out.splitlines() if "start of" in line)
        assert starts[1] == starts[2]  # the same rank and the same port


LOST = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import ps_worker as ps

def main():
    folder, number, is_again = Path(sys.argv[1]), int(sys.argv[2]), bool(os.environ["ROWSTEAD_JOB"])
    while is_again and os.environ["RANK"] == "1" and not (folder / "over").exists():
        time.sleep(0.02)
    with ps.init(mode=ps.Sync(), on_lost_worker="continue") as session:
        session.client.create_table(ps.TableSpec("rows", dim=2))
        session.client.push("rows", [1], np.ones((1, 2), np.float32))
        session.client.end_step()
        session.client.flush()
        if session.rank == 1:
            os.kill(os.getpid(), number)
        session.client.push("rows", [1], np.ones((1, 2), np.float32))
        session.client.end_step()
        session.client.flush()
    print("rank 0 is done")
    (folder / "over").touch()
    while number == signal.SIGKILL and not (folder / "end").exists():
        time.sleep(0.02)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_job_that_has_ended_without_a_lost_worker_has_ended_well(number: signal.Signals, tmp_path: Path) -> None:
    """One that was killed is started again and comes when it is over; one that was stopped is never heard of again."""
    with launched(tmp_path, LOST, str(tmp_path), str(int(number)), max_restarts=1, flags=("--lease-s=3",)) as launch:
        ends = {
            signal.SIGKILL: "worker-1 ended with exit code 1, after its job had ended without it: it is not started again.",
            signal.SIGSTOP: "worker-1 still runs, and its job has ended without it: it is killed.",
        }
        launch.wait_for(ends[number])
        (tmp_path / "end").touch()
        assert launch.wait() == 0, launch.err
        assert launch.err.count("ps_proto.errors.JobEnded: Job 1 has ended") == (number == signal.SIGKILL)
        assert launch.out.count("rank 0 is done") == 1


def test_a_worker_that_fails_too_often_ends_the_job(tmp_path: Path) -> None:
    with launched(tmp_path, FAILING, max_restarts=1) as launch:
        assert launch.wait() == 3
        assert launch.said()[3:] == ["worker-1 ended with exit code 3. Its last lines:", "the first line", "the last line"]


def test_a_process_that_cannot_be_started_again_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with launched(tmp_path, WAIT, workers=1, max_restarts=1, environment={**os.environ, "TMPDIR": str(tmp_path)}) as launch:
        launch.wait_for("waiting")
        processes = launch.children()
        _, most = psutil.Process(launch.process.pid).rlimit(psutil.RLIMIT_NOFILE)
        psutil.Process(launch.process.pid).rlimit(psutil.RLIMIT_NOFILE, (0, most))
        os.kill(launch.pids()["worker-0"], signal.SIGKILL)
        assert launch.wait() == 1
        assert launch.said()[-1] == "worker-0 could not be started: Too many open files."
        wait_until_gone(processes)
        assert "Traceback" not in launch.err


@pytest.mark.parametrize("name", ["worker-1", "server-0", pytest.param("coordinator", marks=pytest.mark.deep)])
def test_a_process_that_is_killed_ends_the_job_and_is_named(name: str, tmp_path: Path) -> None:
    with launched(tmp_path, WAIT) as launch:
        launch.wait_for("waiting", times=2)
        processes = launch.children()
        os.kill(launch.pids()[name], signal.SIGKILL)
        assert launch.wait() == 128 + signal.SIGKILL
        assert f"{name} was killed by SIGKILL. Its last lines:" in launch.said()
        wait_until_gone(processes)


@pytest.mark.parametrize(
    ("stage", "number", "code"),
    [
        ("coordinator | ", signal.SIGTERM, 143),
        pytest.param("server-0 | ", signal.SIGINT, 130, marks=pytest.mark.deep),
        pytest.param("worker-0 | waiting", signal.SIGTERM, 143, marks=pytest.mark.deep),
        ("worker-0 | waiting", signal.SIGINT, 130),
    ],
)
def test_a_signal_ends_all_at_every_stage(stage: str, number: signal.Signals, code: int, tmp_path: Path) -> None:
    with launched(tmp_path, WAIT) as launch:
        launch.wait_for(stage)
        processes = launch.children()
        launch.process.send_signal(number)
        assert launch.wait() == code
        assert launch.said()[-1] == f"{number.name}: stopping."
        wait_until_gone(processes)
        ours = [line for line in launch.err.splitlines() if not line.startswith("worker-")]
        assert "Traceback" not in "\n".join(ours)


STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("ignored", flush=True))
print("waiting", flush=True)
while True:
    time.sleep(1000)
"""


def test_a_second_ctrl_c_kills_what_the_first_did_not_end(tmp_path: Path) -> None:
    with launched(tmp_path, STUBBORN) as launch:
        launch.wait_for("waiting", times=2)
        processes = launch.children()
        launch.process.send_signal(signal.SIGINT)
        launch.wait_for("ignored", times=2)
        assert launch.process.poll() is None
        begin_s = time.monotonic()
        launch.process.send_signal(signal.SIGINT)
        assert launch.wait() == 130
        assert time.monotonic() - begin_s < 3  # below the 5 s after which it would kill them anyway
        wait_until_gone(processes)


def test_ctrl_c_while_the_servers_stop_kills_them(tmp_path: Path) -> None:
    script = "import os, sys, time\nprint('waiting', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
    with launched(tmp_path, script, str(tmp_path / "go")) as launch:
        launch.wait_for("waiting", times=2)
        processes = launch.children()
        os.kill(launch.pids()["server-0"], signal.SIGSTOP)  # so that it does not stop by itself
        (tmp_path / "go").touch()
        launch.wait_for("coordinator  stopping")
        begin_s = time.monotonic()
        launch.process.send_signal(signal.SIGINT)
        assert launch.wait() == 130
        assert time.monotonic() - begin_s < 3
        wait_until_gone(processes)


def test_a_worker_that_ignores_every_request_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STUBBORN, workers=1) as launch:
        launch.wait_for("waiting")
        processes = launch.children()
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 143
        wait_until_gone(processes)


PRINTING_FOR_EVER = """
import os, pathlib, signal, sys
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("x" * 100_000)  # more than a pipe takes: the launcher has begun to read it
pathlib.Path(sys.argv[1]).touch()
while True:
    print("x" * 1000)
"""


@pytest.mark.parametrize(
    ("kind", "is_stderr_too"),
    [
        pytest.param("obedient", False, marks=pytest.mark.deep),
        ("obedient", True),
        ("stubborn", False),
        pytest.param("stubborn", True, marks=pytest.mark.deep),
    ],
)
def test_a_signal_ends_all_where_nobody_reads_and_a_second_at_once(kind: str, is_stderr_too: bool, tmp_path: Path) -> None:
    script, started = tmp_path / "script.py", tmp_path / "started"
    script.write_text(PRINTING_FOR_EVER)
    with FullPipe() as pipe, (tmp_path / "err").open("wb") as err:
        command = [*ROWSTEAD, "launch", str(script), str(started), kind]
        process = subprocess.Popen(command, stdout=pipe.writer, stderr=pipe.writer if is_stderr_too else err)
        try:
            poll_until(started.exists, END_TIMEOUT_S)
            children = psutil.Process(process.pid).children(recursive=True)
            assert len(children) == 3
            begin_s = time.monotonic()
            process.send_signal(signal.SIGTERM)

            def has_ended() -> bool:
                if kind == "stubborn" and any(runs(child) for child in children):
                    process.send_signal(signal.SIGTERM)
                return process.poll() is not None

            poll_until(has_ended)
            assert process.returncode == 143
            assert time.monotonic() - begin_s < 4  # below the 5 s after which it would kill them anyway
            wait_until_gone(children)
        finally:
            process.kill()
            process.wait()
    assert is_stderr_too or (tmp_path / "err").read_text().count("launch | SIGTERM: stopping.") == 1


def test_a_full_disk_under_the_logs_fails_no_worker(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").symlink_to("/dev/full")
    script = "import os\nfor number in range(10_000): print(number)\nprint('rank', os.environ['RANK'], 'ends')"
    with launched(tmp_path, script, flags=(f"--log-dir={tmp_path}",)) as launch:
        assert launch.wait() == 0, launch.err
        assert {"worker-0 | rank 0 ends", "worker-1 | rank 1 ends"} < set(launch.out.splitlines())
        assert launch.said()[1:] == ["worker-1.log takes no more lines (No space left on device); they are only shown from here on."]
        assert len((tmp_path / "worker-0.log").read_text().splitlines()) == 10_001


@pytest.mark.parametrize("name", ["coordinator", pytest.param("server-0", marks=pytest.mark.deep), "worker-1"])
def test_a_log_file_that_cannot_be_opened_is_one_sentence_and_exit_code_2(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.log").mkdir()
    with launched(tmp_path, WAIT, flags=(f"--log-dir={tmp_path}",)) as launch:
        assert launch.wait() == 2
        (said,) = launch.said()
        assert said.startswith(f"log_dir is '{tmp_path}' ({name}.log: Is a directory), but must be ")
        assert "Traceback" not in launch.err


# What each of two workers is at when the launcher is killed: nothing of it may keep it alive.
BUSY = """
import ctypes, os, signal, time
print("waiting", flush=True)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    time.sleep(1000)
ctypes.PyDLL(None).sleep(1000)  # a call in C that holds the interpreter
"""


def test_no_orphan_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path, BUSY) as launch:
        launch.wait_for("waiting", times=2)
        processes = launch.children()
        assert len(processes) == 4
        launch.process.kill()
        launch.process.wait()
        wait_until_gone(processes)


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    script = "import subprocess\nprint('child', subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    with launched(tmp_path, script, workers=1) as launch:
        assert launch.wait() == 0
        child = int(launch.out.split()[-1])
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_what_the_coordinator_does_not_take_is_said(tmp_path: Path) -> None:
    with launched(tmp_path, WAIT, flags=("--lease-s=0", "--checkpoint-keep=0")) as launch:
        assert launch.wait() == 2
        assert [line.split(", but")[0] for line in launch.said()[1:]] == [
            "lease_s is '0.0' (from --lease-s)",
            "checkpoint_keep is '0' (from --checkpoint-keep)",
        ]


def test_a_cluster_that_does_not_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    with launched(tmp_path, WAIT, flags=("--host=no-such-host.invalid",)) as launch:
        assert launch.wait() == 2
        assert launch.said()[0] == "coordinator ended with exit code 2. Its last lines:"
        assert "no-such-host.invalid" in launch.said()[1]
        assert "waiting" not in launch.out
