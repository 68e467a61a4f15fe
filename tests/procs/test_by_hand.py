"""A job of several machines, its parts started one by one as docs/several-machines.md says; here the machines are one."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ps_worker as ps

PAGE = (Path(__file__).parents[2] / "docs" / "several-machines.md").read_text()
PROGRAMS = {
    "rowstead": [sys.executable, "-m", "ps_worker.cli"],
    "ps-server": [sys.executable, "-m", "ps_server"],
    "ps-worker": [sys.executable, "-m", "ps_worker"],
    "python": [sys.executable],
}
END_TIMEOUT_S = 60.0

TRAIN = """
import sys
import numpy as np
import ps_worker as ps

def main():
    with ps.init() as session:
        client, ids = session.client, np.arange(10)
        client.create_table(ps.TableSpec("rows", dim=1, optimizer=ps.SGD(lr=1.0)))
        client.push("rows", ids, -np.full((10, 1), session.rank + 1, np.float32))
        client.end_step()
        print("rank", session.rank, "of", session.world_size, sys.argv[1:])

if __name__ == "__main__":
    main()
"""


def commands(program: str) -> list[str]:
    """Return the lines of the page's code blocks that run `program`, without their comments."""
    lines = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    return [line.partition("  #")[0] for line in lines if program in line]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@contextmanager
def running(command: str, script: Path | None = None, changes: Mapping[str, str] | None = None) -> "Iterator[subprocess.Popen[str]]":
    """Run a line of the page as a shell would, but with each text of `changes` in place of the page's, on this machine."""
    for before, after in {"10.0.0.1": "127.0.0.1", "10.0.0.2": "127.0.0.1", "train.py": str(script), **(changes or {})}.items():
        command = command.replace(before, after)
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(variables) :]
    with subprocess.Popen(
        [*PROGRAMS[program], *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> str:
    """Wait for a good end; return what it printed."""
    printed, errors = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 0, errors
    return printed


@pytest.fixture
def port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def test_the_three_commands_of_the_page(script: Path, port: str) -> None:
    (coordinator,) = commands("rowstead coordinator")
    (server,) = commands("ps-server")
    (worker,) = commands("ps-worker")
    with (
        running(worker, script, {"7000": port}) as rank_0,  # in any order: each waits for those that it needs
        running(worker, script, {"7000": port, "--rank 0": "--rank 1"}) as rank_1,
        running(server, changes={"7000": port}) as server_0,
        running(server, changes={"7000": port, "server-0": "server-1"}) as server_1,
        running(coordinator, changes={"7000": port}) as first,
    ):
        assert ended(rank_0) == "rank 0 of 2 ['--epochs', '3']\n"
        assert ended(rank_1) == "rank 1 of 2 ['--epochs', '3']\n"
        with ps.connect(f"127.0.0.1:{port}") as observer:  # servers and rows stay
            assert observer.export("rows")[1].ravel().tolist() == 10 * [1.5]
        (status,) = re.findall(r"`(rowstead status .*?)`", PAGE)
        with running(status, changes={"7000": port}) as shown:
            assert "2 of 2 servers serve" in ended(shown)
        for process in (server_0, server_1, first):
            process.terminate()
            ended(process)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.local_cluster(servers=1) as it:
        yield it


def test_the_same_worker_by_its_environment(script: Path, cluster: ps.LocalCluster) -> None:
    (worker,) = commands(" RANK=0")
    address = {"127.0.0.1:7000": cluster.address}
    with running(worker, script, address) as rank_0, running(worker, script, address | {"RANK=0": "RANK=1"}) as rank_1:
        assert ended(rank_0) == "rank 0 of 2 ['--epochs', '3']\n"
        assert ended(rank_1) == "rank 1 of 2 ['--epochs', '3']\n"


def test_flags_win_over_the_environment_that_torchrun_sets(script: Path, cluster: ps.LocalCluster) -> None:
    torchrun = f"RANK=7 WORLD_SIZE=8 LOCAL_RANK=7 LOCAL_WORLD_SIZE=8 GROUP_RANK=0 ROWSTEAD_COORDINATOR={cluster.address}"
    with running(f"{torchrun} ps-worker --rank 0 --world-size 1 train.py", script) as worker:
        assert ended(worker) == "rank 0 of 1 []\n"


def test_a_worker_of_a_coordinator_that_stays_away_ends_with_its_name(tmp_path: Path, script: Path) -> None:
    script.write_text(TRAIN.replace("ps.init()", "ps.init(retry_timeout_s=0.5)"))
    with running("ps-worker --coordinator 127.0.0.1:9 --rank 0 --world-size 1 train.py", script) as worker:
        _, errors = worker.communicate(timeout=END_TIMEOUT_S)
    assert worker.returncode == 1
    assert "coordinator at 127.0.0.1:9 did not answer for" in errors.splitlines()[-1]


def test_a_worker_that_died_is_replaced_by_starting_it_again(tmp_path: Path, script: Path, cluster: ps.LocalCluster) -> None:
    script.write_text(TRAIN.replace('"rows"', '"replaced"'))
    flags = f"--coordinator {cluster.address} --world-size 2"
    waiting = tmp_path / "waiting.py"
    waiting.write_text("import ps_worker as ps, time\nps.init()\nprint('here', flush=True)\ntime.sleep(1000)\n")
    with running(f"ps-worker {flags} --rank 1 train.py", waiting) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "here\n"
    with (
        running(f"ps-worker {flags} --rank 0 train.py", script) as rank_0,
        running(f"ps-worker {flags} --rank 1 train.py", script) as rank_1,
    ):
        assert "rank 0 of 2" in ended(rank_0)
        assert "rank 1 of 2" in ended(rank_1)
    with ps.connect(cluster.address) as observer:
        assert observer.pull("replaced", np.arange(2)).ravel().tolist() == [1.5, 1.5]


def test_a_place_that_makes_no_sense_is_one_sentence_and_exit_code_2() -> None:
    command = [*PROGRAMS["ps-worker"], "--rank=0", __file__]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert "WORLD_SIZE is missing" in line
