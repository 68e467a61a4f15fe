"""What is registered: when its state is loaded, what is captured of it, and what is refused."""

import gc
from typing import Any

import pytest
import torch
from torch import nn

from ps_proto.errors import InvalidRequest
from ps_worker.resume.packing import pack, unpack
from ps_worker.resume.registry import Registry


class Counted:
    """A number, and how often it was loaded."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.loads = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state.pop("number")  # it may do with the state what it likes
        self.loads += 1


def test_the_state_is_loaded_at_once_and_again_at_the_resume_point() -> None:
    before = Registry()
    before.register("counted", Counted(7))
    after = Registry(before.capture())
    counted = Counted()
    after.register("counted", counted)
    assert counted.number == 7
    counted.number = 1  # as the script sets it at its top
    after.settle()
    assert (counted.number, counted.loads) == (7, 2)
    counted.number = 8
    after.settle()
    assert (counted.number, unpack(after.capture()["counted"])) == (8, {"number": 8})


def test_without_states_nothing_is_loaded() -> None:
    registry, counted = Registry(), Counted(3)
    registry.register("counted", counted)
    registry.settle()
    assert (counted.number, counted.loads) == (3, 0)


def test_a_scheduler_that_is_made_after_its_optimizer_was_registered_changes_nothing() -> None:
    def made(states: dict[str, bytes]) -> tuple[Registry, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        registry = Registry(states)
        optimizer = torch.optim.Adam(nn.Linear(2, 1).parameters(), lr=1.0)
        registry.register("optimizer", optimizer)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
        registry.register("scheduler", scheduler)
        return registry, optimizer, scheduler

    registry, optimizer, scheduler = made({})
    optimizer.step()
    for _ in range(4):
        scheduler.step()
    after, resumed, its_scheduler = made(registry.capture())
    assert resumed.param_groups[0]["lr"] != optimizer.param_groups[0]["lr"]  # the constructor has multiplied it
    after.settle()
    assert resumed.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    optimizer.step()
    resumed.step()
    scheduler.step()
    its_scheduler.step()
    assert resumed.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    "made",
    [
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 8]),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=False),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1, 2), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
            milestones=[2],
        ),
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        lambda optimizer: torch.amp.GradScaler("cpu"),
        lambda optimizer: torch.optim.swa_utils.AveragedModel(nn.BatchNorm1d(2)),
    ],
)
def test_what_torch_has_with_a_state_is_plain_data(made: Any) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    registry = Registry()
    registry.register("it", made(optimizer))
    Registry(registry.capture()).register("it", made(optimizer))


def test_ours_are_held_by_others_and_the_newest_of_a_name_counts() -> None:
    registry, first, second = Registry(), Counted(1), Counted(2)
    registry.register_ours("optimizer.dense", first)
    registry.register_ours("optimizer.dense", second)
    assert unpack(registry.capture()["rowstead.optimizer.dense"]) == {"number": 2}
    assert dict(registry.objects) == {}
    del second
    gc.collect()
    assert registry.capture() == {}


def test_what_nobody_registered_again_is_named(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry({"scheduler": pack(1), "ema": pack(2)})
    registry.settle()
    assert caplog.messages == ["This worker resumes without what was registered as ema, scheduler: register it before the training loop."]


def test_what_is_refused() -> None:
    registry = Registry()
    registry.register("counted", Counted())
    with pytest.raises(InvalidRequest, match="name is 'counted', which is taken"):
        registry.register("counted", Counted())
    for name in ("", 7, "rowstead.mine"):
        with pytest.raises(InvalidRequest, match="name is"):
            registry.register(name, Counted())  # type: ignore[arg-type]
    for other in (object(), Counted, {"state_dict": 1}):
        with pytest.raises(InvalidRequest, match="state_dict and load_state_dict"):
            registry.register("other", other)  # type: ignore[arg-type]


def test_a_state_that_is_no_plain_data_is_named() -> None:
    registry = Registry()
    registry.register("scheduler", torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), Scale()))
    with pytest.raises(InvalidRequest, match=r"what is registered as 'scheduler'\['lr_lambdas'\]\[0\]\['by'\] is a object"):
        registry.capture()


class Scale:
    """A callable with state, which LambdaLR puts into its own."""

    def __init__(self) -> None:
        self.by = object()

    def __call__(self, step: int) -> float:
        return 1.0


# --- gradients -------------------------------------------------------------------------------------------------------------------


class Trained:
    """An optimizer of one parameter."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)

    def gradients_now(self) -> list[torch.Tensor]:
        return [self.weight.grad] if self.weight.grad is not None else []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_gradients_that_are_new_or_were_added_to_are_told_from_those_that_were_there() -> None:
    registry, trained = Registry(), Trained()
    registry.register_ours("optimizer", trained)
    none = registry.gradients()
    torch.autograd.backward(trained.weight.sum())
    first = registry.gradients()
    assert not none.has_all_of(first)
    assert first.has_all_of(registry.gradients())
    torch.autograd.backward(trained.weight.sum())  # adds to it
    assert not first.has_all_of(registry.gradients())
    second = registry.gradients()
    trained.weight.grad = None
    assert second.has_all_of(registry.gradients())
    torch.autograd.backward(trained.weight.sum())
    assert not second.has_all_of(registry.gradients())
