"""ps.prefetch in a script that is started again after any step: the batches that follow, and all random numbers, are the same."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

import ps_worker as ps
from lives import Script, assert_lives_again, lived
from ps_proto.errors import InvalidRequest
from ps_worker.resume.packing import unpack
from ps_worker.session import Session

Log = Callable[..., None]


class Numbers(Dataset[Tensor]):
    """0 to 9; if `is_noisy`, each with a random number of its own."""

    def __init__(self, is_noisy: bool = False) -> None:
        self._is_noisy = is_noisy

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), torch.rand(()).item() + random.random() if self._is_noisy else 0.0])


class Stream(IterableDataset[Tensor]):
    """7 numbers, with noise."""

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(7):
            yield torch.tensor([float(index), torch.rand(()).item()])


class Stateful:
    """A loader that knows its place, and that cannot go back: its numbers come from a generator of its own."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(3)
        self._at = 0

    def __iter__(self) -> Iterator[float]:
        while self._at < 6:
            self._at += 1
            yield self._random.random()
        self._at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at, "random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at, self._random.bit_generator.state = state["at"], state["random"]


class Drawing:
    """A plain Python loader, whose order is drawn at the beginning of a pass and its noise with each batch."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        for index in np.random.permutation(6).tolist():  # noqa: NPY002  # the global one
            yield index, random.random()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "a list": lambda: list(range(6)),
    "in order": lambda: DataLoader(Numbers(), 3),
    "shuffled": lambda: DataLoader(Numbers(), 2, shuffle=True),
    "shuffled with its own generator": lambda: DataLoader(Numbers(), 2, shuffle=True, generator=seeded()),
    "noise in this process": lambda: DataLoader(Numbers(is_noisy=True), 2, shuffle=True, drop_last=True),
    "drawn with replacement": lambda: DataLoader(Numbers(), 2, sampler=RandomSampler(range(10), replacement=True, generator=seeded())),
    "a stream": lambda: DataLoader(Stream(), 2),
    "one that knows its place": Stateful,
    "a Python generator": Drawing,
}


def numbers_of(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, Tensor) else batch


def training(make: Callable[[], Iterable[Any]], depth: int, passes: int = 2) -> Script:
    """A script that trains some passes and draws a random number in each step, as dropout does."""

    def script(session: Session, log: Log) -> None:
        torch.manual_seed(session.client.clock)  # whatever a script does at its top
        random.seed(1)
        np.random.seed(2)  # noqa: NPY002  # as above
        torch.rand(session.client.clock + 3)
        loader = make()
        for number in range(passes):
            for batch in ps.prefetch(loader, depth=depth):
                log(number, numbers_of(batch), torch.rand(()).item(), random.random(), np.random.random())  # noqa: NPY002
                session.client.end_step()

    return script


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("name", LOADERS)
def test_the_batches_that_follow_are_the_same(name: str, depth: int) -> None:
    assert_lives_again(training(LOADERS[name], depth))


def test_with_workers_they_are_the_same() -> None:
    loaders: list[Callable[[], Iterable[Any]]] = [
        lambda: DataLoader(Numbers(is_noisy=True), 2, shuffle=True, num_workers=2),
        lambda: DataLoader(Stream(), 2, num_workers=2),
    ]
    for loader in loaders:
        assert_lives_again(training(loader, depth=1), after=lambda steps: [2, steps[-1] - 2])


def test_a_pass_made_anew_each_time_is_found_too() -> None:
    def script(session: Session, log: Log) -> None:
        data = list(range(4))
        for number in range(3):
            for batch in ps.prefetch([10 * number + item for item in data]):
                log(batch)
                session.client.end_step()

    assert_lives_again(script)


def test_gradients_accumulated_over_batches() -> None:
    def script(session: Session, log: Log) -> None:
        for _ in range(2):  # each of 10 batches, of which the last one is in no step
            for number, batch in enumerate(ps.prefetch(DataLoader(Numbers(), 1, shuffle=True), batches_per_step=3)):
                log(numbers_of(batch), torch.rand(()).item())
                if number % 3 == 2:
                    session.client.end_step()

    assert_lives_again(script)


def test_a_pass_that_is_broken_off() -> None:
    def script(session: Session, log: Log) -> None:
        loader = DataLoader(Numbers(), 2, shuffle=True, generator=seeded())
        for number in range(4):
            for batch in ps.prefetch(loader):
                log(numbers_of(batch))
                session.client.end_step()
                if session.client.clock % 3 == 0:
                    break
            log("behind pass", number, torch.rand(()).item())

    whole = lived(script)
    for step, state in whole.states.items():
        again = lived(script, step, state)
        assert [said for said in again.log if said[0] > step] == [said for said in whole.log if said[0] > step], step


class Scheduled:
    """Counts what is done once in a pass."""

    epochs = 0

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_what_is_done_between_passes_is_done_once(is_broken_off: bool) -> None:
    def script(session: Session, log: Log) -> None:
        scheduled = Scheduled()
        session.register("scheduled", scheduled)
        for _ in range(3):
            for batch in ps.prefetch(range(3)):
                log(batch, scheduled.epochs)
                session.client.end_step()
                if is_broken_off and batch == 1:
                    break
            scheduled.epochs += 1

    assert_lives_again(script)


def evaluated(log: Log) -> None:
    with torch.no_grad():
        log("evaluated", [numbers_of(batch) for batch in ps.prefetch(DataLoader(Numbers(), 5, shuffle=True))])


def test_evaluations_between_passes_are_made_again() -> None:
    def script(session: Session, log: Log) -> None:
        for _ in range(2):
            for batch in ps.prefetch(DataLoader(Numbers(), 5, shuffle=True)):
                log(numbers_of(batch), torch.rand(()).item())
                session.client.end_step()
            evaluated(log)
            log("with gradients", list(ps.prefetch([1, 2])), session.is_replaying)

    whole = lived(script)
    for step, state in whole.states.items():
        again = lived(script, step, state)
        made_again = [said for said in again.log if said[-1] is True]
        assert len(made_again) == (step > 2)  # of the first epoch
        behind = again.log[2 * len(made_again) :]
        assert behind == [said for said in whole.log if said[0] >= step], step


@pytest.mark.parametrize("is_before_the_step", [True, False])
def test_evaluations_inside_a_pass_are_no_part_of_the_position(is_before_the_step: bool) -> None:
    def script(session: Session, log: Log) -> None:
        for _ in range(2):
            for batch in ps.prefetch(DataLoader(Numbers(), 4, shuffle=True)):
                log(numbers_of(batch), torch.rand(()).item())
                if is_before_the_step and session.client.clock % 2:
                    evaluated(log)
                session.client.end_step()
                if not is_before_the_step:
                    for number in ps.prefetch([1, 2]):  # though gradients are on
                        assert number in (1, 2)

    assert_lives_again(script)


def test_two_loaders_side_by_side() -> None:
    def script(session: Session, log: Log) -> None:
        clicks, buys = DataLoader(Numbers(), 2, shuffle=True), DataLoader(Numbers(is_noisy=True), 3, shuffle=True)
        for _ in range(3):
            for click, buy in zip(ps.prefetch(clicks), ps.prefetch(buys, depth=2), strict=False):
                log(numbers_of(click), numbers_of(buy), torch.rand(()).item())
                session.client.end_step()

    assert_lives_again(script)


def test_a_loader_inside_a_loop_over_steps() -> None:
    def script(session: Session, log: Log) -> None:
        batches: Iterator[Any] = iter(())
        for step in session.steps(9):
            drawn = torch.rand(()).item()
            batch = next(batches, None)
            if batch is None:
                batches = iter(ps.prefetch(DataLoader(Numbers(), 3, shuffle=True)))
                batch = next(batches)
            log(step, numbers_of(batch), drawn, torch.rand(()).item())
            session.client.end_step()

    assert_lives_again(script)


@pytest.mark.parametrize("make", [lambda: [1, 2, 3], lambda: iter([1, 2, 3])], ids=["counted", "agreed"])
def test_passes_that_end_with_the_shortest(make: Callable[[], Iterable[int]]) -> None:
    def script(session: Session, log: Log) -> None:
        for _ in range(2):
            session.barrier()
            for batch in ps.prefetch(make(), uneven="stop"):
                log(batch)
                if batch == 2:
                    session.barrier()
                session.client.end_step()
        session.barrier()

    whole = assert_lives_again(script, world_size=2)
    asked = dict(whole.client.asked)
    assert list(asked) == list(range(len(whole.client.asked)))
    for step, state in whole.states.items():
        again = lived(script, step, state, world_size=2)
        following = range(unpack(state)["barriers"][0], len(asked))
        in_flight = [number for number, _ in again.client.asked if number not in following]
        assert again.client.asked == [(number, asked[number]) for number in (*in_flight, *following)], step
        assert len(in_flight) <= 1
        assert again.client.next_barrier == whole.client.next_barrier


def test_a_shorter_loader_than_before_is_refused() -> None:
    state = lived(training(lambda: range(6), depth=1, passes=1)).states[4]
    with pytest.raises(
        InvalidRequest, match=r"the loader is at its end after 3 batches, but must be the same as before: 4 of it were used"
    ):
        lived(training(lambda: range(3), depth=1, passes=1), 4, state)


def test_an_error_of_the_loader_comes_at_its_batch_again() -> None:
    def failing() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    def script(session: Session, log: Log) -> None:
        def train() -> None:
            for batch in ps.prefetch(failing(), depth=2):
                log(batch)
                session.client.end_step()

        with pytest.raises(OSError, match="the disk is gone"):
            train()
        log("over")

    assert_lives_again(script)
