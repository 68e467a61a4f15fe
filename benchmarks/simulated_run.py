"""How long a simulated run takes: 3 servers, 3 workers, 20 steps, 2 tables of 50 ids, as tests/sim runs them by the hundred.

    python benchmarks/simulated_run.py [--rounds 30]

Prints the median and range of milliseconds a run, for each mode, beside a floor of the same round: the same number of messages through
an empty event queue. The run is checked as the tests do, so a fast wrong one fails. Absolute times are of one machine; the ratio is
what to compare.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from jobs import checksum  # noqa: E402  # tests are no package: the path comes first
from naive.training import train as train_in_one_process  # noqa: E402
from ps_proto.values import Async, BoundedStaleness, Mode, Sync  # noqa: E402
from sim.cluster import Simulation  # noqa: E402
from sim.network import Chances, Message, Network, VirtualTime  # noqa: E402
from sim.scripts import train, trained  # noqa: E402

SERVERS, WORKERS, STEPS = 3, 3, 20
ROUGH = Chances(drop=0.02, double=0.02, delay=0.02)


def run(seed: int, mode: Mode) -> Simulation:
    sim = Simulation(seed, SERVERS, ROUGH)
    for rank in range(WORKERS):
        sim.worker(f"worker-{rank}", train(rank, WORKERS, STEPS, mode))
    sim.run()
    return sim


def floor(seed: int, messages: int) -> None:
    """Send as many messages through the network alone."""
    clock = VirtualTime()
    network = Network(clock, random.Random(seed), lambda message: None, ROUGH)
    for number in range(messages):
        network.send(Message("a", "b", "ask", number, None))
    while clock.advance():
        pass


def milliseconds(work: Callable[[], object]) -> tuple[float, object]:
    begin_s = time.perf_counter()
    result = work()
    return (time.perf_counter() - begin_s) * 1e3, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    reference = checksum(train_in_one_process(WORKERS, STEPS))
    print(f"{'mode':<28} {'ms a run':>9} {'range':>16} {'messages':>9} {'x floor':>8}")
    for mode in (Sync(), BoundedStaleness(2), Async()):
        run(0, mode)  # compiles
        times, ratios, messages = [], [], 0
        for seed in range(rounds):
            took_ms, sim = milliseconds(lambda seed=seed, mode=mode: run(seed, mode))  # type: ignore[misc]
            assert isinstance(sim, Simulation)
            messages = sim.network.counts["sent"]
            floor_ms, _ = milliseconds(lambda seed=seed, messages=messages: floor(seed, messages))  # type: ignore[misc]
            times.append(took_ms)
            ratios.append(took_ms / floor_ms)
            if isinstance(mode, Sync) and checksum(trained(sim)) != reference:
                sys.exit(f"seed {seed}: the simulated run has other bits than training in one process")
        spread = f"[{min(times):.1f} .. {max(times):.1f}]"
        print(f"{mode!s:<28} {statistics.median(times):>9.1f} {spread:>16} {messages:>9,} {statistics.median(ratios):>8.1f}")


if __name__ == "__main__":
    main()
