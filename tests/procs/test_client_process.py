"""What becomes of the user's own process: Ctrl-C in the middle of a call, an end without close(), a fork beside an open client."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import ps_worker as ps
from polling import poll_until

SERVERS = 2
ENDS_WITHIN_S = 8.0  # below any timeout of ours: nothing was waited for in vain

# Rank 0 of a synchronous job whose rank 1 never comes: a pull of the second step waits for it. "counts" does not wait.
CONNECTED = """
import os, signal, sys, threading, time
import numpy as np
import ps_worker as ps

client = ps.connect(sys.argv[1], rank=0, world_size=2, mode=ps.Sync(), part_size_bytes=int(sys.argv[2]))
client.create_table(ps.TableSpec("rows", dim=4))
client.create_table(ps.TableSpec("counts", dim=4, optimizer=ps.SGD(lr=1.0), mode=ps.Async()))
ids = np.arange(1_000)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.local_cluster(servers=SERVERS) as it:
        yield it


@contextmanager
def running(
    cluster: ps.LocalCluster, script: str, part_size_bytes: int = 1 << 20, transport: str = "auto"
) -> "Iterator[subprocess.Popen[str]]":
    """Run a script that begins as CONNECTED does; it is killed where it outlives the block."""
    command = [sys.executable, "-c", CONNECTED + script, cluster.address, str(part_size_bytes)]
    environment = {**os.environ, "ROWSTEAD_TRANSPORT": transport}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def is_parked(cluster: ps.LocalCluster, requests: int) -> Callable[[], bool]:
    def ask() -> bool:
        with ps.connect(cluster.address) as observer:
            return sum(stats.server["parked"] for stats in observer.stats().values()) == requests

    return ask


@contextmanager
def stopped(cluster: ps.LocalCluster) -> Iterator[Callable[[], None]]:
    """Keep the servers from answering until the block ends or what it is given is called."""
    pids = [pid for name, pid in cluster.pids.items() if name != "coordinator"]

    def go_on() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


def assert_interrupted(process: "subprocess.Popen[str]") -> None:
    """Expect the end that Python gives to a script on Ctrl-C, soon, and no other traceback than that."""
    _, said = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == -signal.SIGINT
    assert said.count("Traceback (most recent call last)") == 1, said
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in said


WAITS = {
    "pull": 'client.pull("rows", ids)',
    "pull inside with": 'with client:\n    client.pull("rows", ids)',
    "pull_async": 'client.pull_async("rows", ids).result()',
    "pull_async inside with": 'with client:\n    client.pull_async("rows", ids).result()',
    "flush": "client.flush()",
}


@pytest.mark.parametrize(
    ("wait", "transport"),
    [
        ("pull inside with", "auto"),
        ("pull_async", "auto"),
        ("flush", "auto"),
        ("pull", "grpc"),
        pytest.param("pull", "auto", marks=pytest.mark.deep),
        pytest.param("pull_async inside with", "auto", marks=pytest.mark.deep),
        pytest.param("flush", "grpc", marks=pytest.mark.deep),
    ],
)
def test_ctrl_c_ends_a_wait_and_the_process(cluster: ps.LocalCluster, wait: str, transport: str) -> None:
    with running(cluster, f"client.end_step()\n{WAITS[wait]}", transport=transport) as process:
        poll_until(is_parked(cluster, SERVERS))
        process.send_signal(signal.SIGINT)
        assert_interrupted(process)
    poll_until(is_parked(cluster, 0))


# A thread sends the signal to its own process, once the main thread is in the call that carries the push.
INTERRUPTED_PUSH = """
import ps_worker.transport.lane
ps_worker.transport.lane.ARENA_BYTES_MIN = 1

def is_push(frame) -> bool:
    while frame is not None and frame.f_code.co_name != "call":
        frame = frame.f_back
    return frame is not None and type(frame.f_locals["body"]).__name__ == "Push"

# Whether the main thread waits in the kernel. A signal that comes just before, as while the interpreter's lock changes hands, ends no wait.
def has_settled() -> bool:
    before = slices()
    time.sleep(0.05)
    return slices() == before

def slices() -> str:
    with open(f"/proc/self/task/{os.getpid()}/schedstat") as file:
        return file.read().split()[2]  # how often the main thread was let run

def interrupt() -> None:
    while True:
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            over_grpc = frame.f_code.co_name == "_exchange" and "Push" in str(frame.f_locals.get("method"))
            if (over_grpc or (frame.f_code.co_name == "_receive" and is_push(frame.f_back))) and has_settled():
                os.kill(os.getpid(), signal.SIGINT)
                return
            frame = frame.f_back

def push_interrupted() -> None:
    gradients = np.ones((ids.size, 4), np.float32)
    print(f"before {client.pull('counts', ids).sum()}", flush=True)
    input()
    threading.Thread(target=interrupt).start()
    try:
        client.push("counts", ids, gradients)
    finally:
        gradients[:] = 5  # it is the caller's again
        print("interrupted", flush=True)
"""


WAYS = {"one message": ("grpc", 1 << 20), "many parts": ("grpc", 1_024), "arena": ("arena", 1 << 20), "tcp": ("tcp", 1 << 20)}


@pytest.mark.parametrize(("transport", "part_size_bytes"), WAYS.values(), ids=WAYS)
def test_a_push_that_ctrl_c_interrupted_can_be_sent_again_and_counts_once(
    cluster: ps.LocalCluster, transport: str, part_size_bytes: int
) -> None:
    script = """
try:
    push_interrupted()
except KeyboardInterrupt as error:
    kept = error  # and with it every frame, as a notebook does
input()
client.retry_push()
print(f"after {client.pull('counts', ids).sum()}", flush=True)
"""
    with running(cluster, INTERRUPTED_PUSH + script, part_size_bytes, transport) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = float(process.stdout.readline().removeprefix("before "))
        with stopped(cluster) as go_on:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "interrupted\n"
            go_on()
            shown, said = process.communicate("\n", timeout=60)
    assert (process.returncode, said) == (0, "")
    assert shown == f"after {before - 4_000}\n"


BLOCKS = {"alone": "push_interrupted()", "inside with": "with client:\n    push_interrupted()"}


@pytest.mark.parametrize(
    ("way", "block"),
    [
        ("one message", "alone"),
        ("many parts", "inside with"),
        ("arena", "inside with"),
        ("tcp", "alone"),
        pytest.param("one message", "inside with", marks=pytest.mark.deep),
        pytest.param("many parts", "alone", marks=pytest.mark.deep),
        pytest.param("arena", "alone", marks=pytest.mark.deep),
        pytest.param("tcp", "inside with", marks=pytest.mark.deep),
    ],
)
def test_ctrl_c_in_a_push_ends_the_process(cluster: ps.LocalCluster, way: str, block: str) -> None:
    transport, part_size_bytes = WAYS[way]
    with running(cluster, INTERRUPTED_PUSH + BLOCKS[block], part_size_bytes, transport) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith("before ")
        with stopped(cluster):
            process.stdin.write("\n")
            process.stdin.flush()
            assert_interrupted(process)


UNCLOSED = {
    "idle": 'client.pull("counts", ids)',
    "in a step": 'client.push("rows", ids, np.ones((1_000, 4), np.float32))',
    "with a pull that waits": 'client.end_step()\nhandle = client.pull_async("rows", ids)',
    "with an export half read": """
client.push("counts", ids, np.ones((1_000, 4), np.float32))
parts = client.export_iter("counts")
next(parts)
""",
    "an observer": "observer = ps.connect(sys.argv[1])\nobserver.stats()",
}


@pytest.mark.parametrize("state", UNCLOSED)
def test_a_script_that_forgets_close_ends_without_a_word(cluster: ps.LocalCluster, state: str) -> None:
    with running(cluster, f"{UNCLOSED[state]}\nprint('end', flush=True)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "end\n"
        _, said = process.communicate(timeout=ENDS_WITHIN_S)
    assert (process.returncode, said) == (0, "")
    poll_until(is_parked(cluster, 0))


# The child leaves by sys.exit: through every `with`, atexit's callbacks and the end of the interpreter.
FORKS = """
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
child.start()
child.join()
assert child.exitcode == 0
"""


def test_forked_children_that_leave_us_alone_disturb_nothing() -> None:
    script = f"""
import multiprocessing, os, sys
import numpy as np
import ps_worker as ps

def counted(client):
    # All that the servers count, but for time.
    for stats in client.stats().values():
        for name in ("cpu_s", "turns_s"):
            del stats.server[name]
        yield stats

ids, ones = np.arange(100), np.ones((100, 4), np.float32)
with ps.local_cluster(servers=1) as cluster, ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Sync()) as client:
    client.create_table(ps.TableSpec("rows", dim=4, optimizer=ps.SGD(lr=1.0)))
    client.push("rows", ids, ones)
    waiting = client.push_async("rows", ids, ones)  # the client has threads of its own now
    waiting.result()
    before = list(counted(client))
{textwrap.indent(FORKS, "    ")}
    after = list(counted(client))
    assert after == before, (before, after)
    client.end_step()
    client.flush()
    assert (client.pull("rows", ids) == -2).all()
    assert client.incarnation == 1
print("parent")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == "parent"
