"""A row's bits are a function of its own past alone: not of the other rows of a call, their order, or how calls are cut."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_proto import values
from ps_proto.values import Optimizer
from ps_server.shard.optimizers import row_optimizer
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.slab import Slab
from sharding.arrays import read_only

plain = st.sampled_from(
    [
        values.SGD(lr=0.1, weight_decay=0.1),
        values.SGD(lr=0.1, momentum=0.9, dampening=0.5),
        values.SGD(lr=0.1, momentum=0.9, nesterov=True),
        values.Adagrad(lr=0.1),
        values.RowWiseAdagrad(lr=0.1),
        values.RMSprop(centered=True, momentum=0.5),
        values.Adam(amsgrad=True),
        values.AdamW(betas=(0.3, 0.9)),
        values.FTRL(l1=0.5),
        values.Lion(lr=0.1),
    ]
)
decorators = st.lists(st.sampled_from(list(values.DECORATED.values())), max_size=3, unique=True)


@st.composite
def optimizers(draw: st.DrawFn) -> Optimizer:
    optimizer: Optimizer = draw(plain)
    for decorator in draw(decorators):
        optimizer = decorator(optimizer)
    return optimizer


@given(optimizer=optimizers(), dim=st.integers(1, 40), slots=st.lists(st.integers(0, 5), max_size=20), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_rows_updated_together_are_as_rows_updated_alone(optimizer: Optimizer, dim: int, slots: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = row_optimizer(optimizer, dim)
    together, alone = Slab(target.width, 6), Slab(target.width, 6)
    for slab in (together, alone):
        slab.records[:, dim:] = target.initial_state()
    together.records[:, :dim] = alone.records[:, :dim] = rng.normal(size=(6, dim)).astype(np.float32)
    gradients = read_only(rng.normal(size=(len(slots), dim)).astype(np.float32))
    read, places = read_only(rng.normal(size=(3, dim)).astype(np.float32)), rng.integers(-1, 3, len(slots)).astype(np.int32)
    origin = Origin(staleness=2, read=read, places=places)
    target.apply(together, np.array(slots, np.int32), gradients, optimizer.parameters(), origin)
    by_row = [index for slot in range(6) for index in range(len(slots)) if slots[index] == slot]  # all of a row, then all of the next
    for index in by_row:
        one = replace(origin, places=places[index : index + 1])
        target.apply(alone, np.array([slots[index]], np.int32), gradients[index : index + 1], optimizer.parameters(), one)
    assert together.records.tobytes() == alone.records.tobytes()
