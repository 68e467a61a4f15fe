"""Asking the processor for memory before it is needed."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from sharding.kernel import kernel

AHEAD = 8  # rows between the hint and the use: enough to hide a miss, few enough not to crowd the cache
LINE_FLOATS = 16  # float32 words in a cache line of 64 bytes
LINES_MAX = 8  # of one record; the processor's own prefetcher has seen the pattern by then


def _no_hint(array: Any, element: Any) -> None:
    """Do nothing: the stand-in where kernels run as plain Python."""


@intrinsic
def _hint(typing_context: Any, array: Any, element: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(hint, [address, i32(0), i32(3), i32(1)])  # for reading, into every level, data
        return context.get_dummy_value()

    return types.void(array, element), emit


# A call in a kernel: `prefetch(array, element)`, with `element` counted from the first of a C-contiguous array of any shape.
# An address outside the array is harmless: a hint never faults.
prefetch = cast("Callable[[Any, Any], None]", _no_hint if config.DISABLE_JIT else _hint)  # type: ignore[attr-defined]  # set from the environment


@kernel
def prefetch_record(records: npt.NDArray[np.float32] | npt.NDArray[np.uint32], slot: np.int32, columns: int) -> None:
    """Ask for the first `columns` words of the record in `slot`; `records` float32[capacity, width], or uint32."""
    begin = np.int64(slot) * records.shape[1]
    for column in range(0, min(columns, LINE_FLOATS * LINES_MAX), LINE_FLOATS):
        prefetch(records, begin + column)
