"""How a script's session ends with its process: unclosed, in an exception, forked, embedded."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ps_worker as ps

ENDS_WITHIN_S = 30.0

PUSHED = """
import os, sys
import numpy as np
import ps_worker as ps
session = ps.init(**arguments)
session.client.create_table(ps.TableSpec(table, dim=1, optimizer=ps.SGD(lr=1.0)))
session.client.push(table, np.arange(3), -np.ones((3, 1), np.float32))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.local_cluster(servers=2) as it:
        yield it


def run_script(code: str, table: str, **arguments: object) -> "subprocess.CompletedProcess[str]":
    script = f"table, arguments = {table!r}, {arguments!r}\n{PUSHED}{code}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=False)


def sums(cluster: ps.LocalCluster, table: str) -> list[float]:
    with ps.connect(cluster.address) as observer:
        return [float(row) for row in observer.pull(table, np.arange(3))[:, 0]]


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
def test_an_unclosed_one_is_closed_at_the_end(cluster: ps.LocalCluster, end: str) -> None:
    done = run_script(end, f"unclosed {end}", address=cluster.address, rank=0, world_size=1)
    assert (done.returncode, done.stderr) == (0, "")
    assert sums(cluster, f"unclosed {end}") == [1, 1, 1]  # the step was finished


def test_an_uncaught_exception_finishes_nothing(cluster: ps.LocalCluster) -> None:
    done = run_script("raise RuntimeError('on purpose')", "failed", address=cluster.address, rank=0, world_size=1)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: on purpose")
    assert sums(cluster, "failed") == [0, 0, 0]
    with ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Sync()) as again:  # the rank had not left
        assert again.incarnation > 1


def test_sys_exit_in_the_block_leaves_the_job_only_with_code_0(cluster: ps.LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nimport ps_worker as ps\nwith ps.init(mode=ps.Async()):\n    sys.exit(int(sys.argv[1]))\n")
    environment = {**os.environ, "ROWSTEAD_COORDINATOR": cluster.address, "RANK": "0", "WORLD_SIZE": "1"}
    for code, ends in ((3, "still there"), (0, "left")):
        command = [sys.executable, str(script), str(code)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == code, ran.stderr
        with ps.connect(cluster.address) as observer:
            assert ("left" if observer.mode is None else "still there") == ends


def test_an_end_waits_for_others_only_so_long(cluster: ps.LocalCluster) -> None:
    code = "sys.modules['ps_worker.session'].EXIT_WAIT_S = 0.3"
    done = run_script(code, "alone", address=cluster.address, rank=0, world_size=2)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("The script ended without session.close(), and the other ranks are not done with its last step")


def test_an_embedded_cluster_says_that_it_ends_unsaved() -> None:
    done = run_script("", "rows")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "The embedded cluster ends unsaved: what changed in rows is gone. Keep it with ps.save().\n"


def test_a_fork_that_ends_leaves_session_and_cluster_alone() -> None:
    code = """
child = os.fork()
if child == 0:
    try:
        session.client
    except ps.InvalidRequest as error:
        print(error)
    session.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
session.client.end_step()
session.client.flush()
print(session.client.pull(table, np.arange(3))[:, 0].tolist())
session.mark_saved()
"""
    done = run_script(code, "rows")
    assert (done.returncode, done.stderr) == (0, "")
    said, rows = done.stdout.splitlines()
    assert "a fork of process" in said
    assert rows == "[1.0, 1.0, 1.0]"
