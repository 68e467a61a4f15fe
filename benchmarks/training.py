"""W5: what a sample of a DLRM's training costs, beside plain torch in one process with everything in its own memory."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import ps_worker as ps
from benchmarks.case import Case, Figure, Goal, WrongAnswer
from benchmarks.click_model import batches
from benchmarks.cpu_time import cpu_s
from benchmarks.sizes import Sizes
from benchmarks.told import Told
from benchmarks.trained import Trained
from benchmarks.trainer import LEARNING_RATE, TABLE

WARM_UP_STEPS = 12


def take(trainers: Sequence[Told], steps: int) -> float:
    """Let all take so many steps at once; return the seconds of the slowest."""
    for trainer in trainers:
        trainer.tell(str(steps))
    return max([float(trainer.hear()) for trainer in trainers])


class Training(Case):
    """A round lets each kind of trainer take so many steps, one kind after another; only ours with 2 workers has both processors."""

    name = "W5 DLRM"
    figures = (
        Figure("plain / compute", "µs", Goal("at least", 0.55)),
        Figure("1 worker", "µs", Goal("at least", 1.2)),
        Figure("2 workers", "µs", Goal("at least", 1.6)),
        Figure("1 worker, CPU", "µs", Goal("at most", 18.6, of="ours")),
        Figure("2 workers, CPU", "µs", Goal("at most", 18.6, of="ours")),
    )

    def __init__(self, sizes: Sizes, seed: int, stack: ExitStack) -> None:
        self._sizes, self._seed, self._stack = sizes, seed, stack
        self._compute, self._plain = self._start("compute"), self._start("plain")
        self._jobs = {workers: self._job(workers) for workers in (1, 2)}
        self._steps = dict.fromkeys(self._jobs, 0)
        self._trained = {workers: self._untrained(workers) for workers in self._jobs}
        for trainers in ([self._compute], [self._plain]):
            take(trainers, WARM_UP_STEPS)
        for workers in self._jobs:
            self._train(workers, WARM_UP_STEPS)

    def _start(self, role: str, *job: str) -> Told:
        arguments = (role, str(self._sizes.training_batch), str(self._seed), *job)
        trainer = self._stack.enter_context(Told("benchmarks.trainer", *arguments))
        if not job:
            trainer.hear()
        return trainer

    def _job(self, workers: int) -> tuple[ps.LocalCluster, list[Told]]:
        cluster = self._stack.enter_context(ps.local_cluster(servers=1, log_level="warning"))
        trainers = [self._start("worker", cluster.address, str(rank), str(workers)) for rank in range(workers)]
        for trainer in trainers:
            trainer.hear()
        return cluster, trainers

    def _untrained(self, workers: int) -> Trained:
        pools = [[batch.ids.numpy() for batch in batches(self._sizes.training_batch, self._seed, rank)] for rank in range(workers)]
        with ps.connect(self._jobs[workers][0].address) as observer:
            return Trained(observer, TABLE, pools, LEARNING_RATE)

    def _train(self, workers: int, steps: int) -> tuple[float, float]:
        """Return microseconds for each sample: of time, and of the processors."""
        cluster, trainers = self._jobs[workers]
        pids = [*cluster.pids.values(), *[trainer.process.pid for trainer in trainers]]
        before_s = cpu_s(pids)
        seconds = take(trainers, steps)
        self._steps[workers] += steps
        samples = steps * self._sizes.training_batch * workers
        return seconds / samples * 1e6, (cpu_s(pids) - before_s) / samples * 1e6

    def prepare(self) -> None:
        steps, pid = self._sizes.training_steps, self._plain.process.pid
        samples = steps * self._sizes.training_batch
        self._alone = take([self._compute], steps) / samples * 1e6
        before_s = cpu_s([pid])
        self._torch = take([self._plain], steps) / samples * 1e6
        self._torch_cpu = (cpu_s([pid]) - before_s) / samples * 1e6

    def floor(self) -> tuple[float, ...]:
        return self._alone, self._torch, self._torch, self._torch_cpu, self._torch_cpu

    def ours(self) -> tuple[float, ...]:
        trained = [self._train(workers, self._sizes.training_steps) for workers in self._jobs]
        return self._torch, *[passed for passed, _ in trained], *[cpu for _, cpu in trained]

    def check(self) -> None:
        """Every step was pushed once, and the rows are such as those steps leave."""
        for workers, (cluster, _) in self._jobs.items():
            with ps.connect(cluster.address) as observer:
                (stats,) = observer.stats().values()
                steps = self._steps[workers]
                if stats.server["pushes"] != steps * workers:
                    raise WrongAnswer(f"the server has {stats.server['pushes']} pushes where {steps * workers} were due")
                self._trained[workers].check(observer, steps)


@contextmanager
def training_case(sizes: Sizes, seed: int) -> Iterator[Case]:
    with ExitStack() as stack:
        yield Training(sizes, seed, stack)
