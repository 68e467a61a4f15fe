"""What every test has: the Hypothesis profiles, and a check that it leaves no process and no thread behind."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import ps_worker as ps
    from inprocess import InProcess

SETTLE_S = 5.0  # how long a process or thread that is already ending may take

# Derandomized: the same examples on every machine, so a red test is red everywhere. The longer search prints how to repeat a find.
settings.register_profile("quick", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("deep", deadline=None, max_examples=2_000, stateful_step_count=100, print_blob=True)
settings.load_profile("quick")


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start: a shell makes a job in the background ignore it, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Import all tests without a look for garbage: it takes as long as the imports."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported, which stays to the end, out of every look for garbage that comes."""
    gc.freeze()
    gc.enable()


def _children() -> set[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none, as in most tests: psutil would look at every process of the machine to find that out
        return set()
    return set(psutil.Process().children(recursive=True))


def _is_left_behind(process: psutil.Process) -> bool:
    try:
        # The resource tracker of multiprocessing belongs to the interpreter, and a zombie runs no more.
        return process.status() != psutil.STATUS_ZOMBIE and "multiprocessing.resource_tracker" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def joined() -> "Iterator[tuple[InProcess, ps.Client]]":
    """Make a cluster in this process with one worker in it; `cluster` and `client` are its two halves."""
    from beside_torch import one_worker  # here, since most tests do without torch

    with one_worker() as both:
        yield both


@pytest.fixture
def cluster(joined: "tuple[InProcess, ps.Client]") -> "InProcess":
    return joined[0]


@pytest.fixture
def client(joined: "tuple[InProcess, ps.Client]") -> "ps.Client":
    return joined[1]


@pytest.fixture
def process_group() -> Iterator[None]:
    """Make a torch.distributed group of one rank, which outlives the test's DDP models.

    Were a model the last to hold it, torch would wait, in its destructor, for a thread that may wait for the interpreter.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: as in a launched worker of two on two cores, and with sums in one order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all that the test starts the environment of procs/hasty_script.py."""
    from procs.hasty_script import hasty_environment

    for name, value in hasty_environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that ends while a process or a non-daemon thread that it started still runs; end such a process."""
    children, threads = _children(), set(threading.enumerate())
    yield
    new_threads = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    for thread in new_threads:
        thread.join(SETTLE_S)
    new_children = [process for process in _children() - children if _is_left_behind(process)]
    _, alive = psutil.wait_procs(new_children, timeout=SETTLE_S if new_children else 0)
    left = [f"process {process.pid} {process.name()}" for process in alive]
    left += [f"thread {thread.name}" for thread in new_threads if thread.is_alive()]
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=SETTLE_S)
    if left:
        pytest.fail(f"The test left behind: {', '.join(left)}.")
