"""What a table is."""

import re
from dataclasses import dataclass, field, replace

from ps_proto.values.initializers import Assigned, Initializer, Zeros
from ps_proto.values.modes import Mode
from ps_proto.values.optimizers import SGD, Optimizer
from ps_proto.values.setting import check, check_at_least, whole
from sharding.wire_format import FORMATS

MAX_DIM = 65_536  # a row of 256 KiB: far below any message limit, and requests are cut between rows
MAX_WIDTH = 4 * MAX_DIM + 64  # of a record: the row and its state columns, of which there are at most three and some counts
MAX_NORM_MIN = 1e-30  # below, what scales a row has too few bits in a float32
DTYPES = ("float32", "bfloat16")
WIRES = tuple(FORMATS)

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


@dataclass(frozen=True)
class TableSpec:
    """A named map from id (uint64) to a row of `dim` numbers, float32 to whoever reads or writes them.

    seed      any uint64. A table is its name: initial values and placement depend on it, never on the order of creation (R18).
    mode      overrides the job's; None follows it.
    dtype     how servers keep rows: "float32", or "bfloat16", which takes half the memory: an update is computed in float32 and rounded
              stochastically (Gupta et al., ICML 2015); state columns stay float32.
    max_norm  the greatest Euclidean norm of a row: what exceeds it is scaled down to it, initial values too; None: any.
    wire      how rows are pulled and gradients pushed, on every transport: "float32", "bfloat16", or "int8" with a scale for each row, both
              rounded to the nearest (sharding/wire_rows.py). What is assigned or exported travels as float32.
    """

    name: str
    dim: int
    optimizer: Optimizer = field(default_factory=SGD)
    initializer: Initializer = field(default_factory=Zeros)
    seed: int = 0
    mode: Mode | None = None
    dtype: str = "float32"
    max_norm: float | None = None
    wire: str = "float32"

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        check(is_name, "TableSpec.name", self.name, "1 to 256 printable characters")
        object.__setattr__(self, "dim", whole("TableSpec.dim", self.dim, 1, MAX_DIM))
        check(isinstance(self.optimizer, Optimizer), "TableSpec.optimizer", self.optimizer, "an optimizer such as ps.Adagrad(lr=0.05)")
        is_initializer = isinstance(self.initializer, Initializer)
        check(is_initializer, "TableSpec.initializer", self.initializer, "an initializer such as ps.Uniform(-0.01, 0.01)")
        object.__setattr__(self, "seed", whole("TableSpec.seed", self.seed, 0, 2**64 - 1))
        check(self.mode is None or isinstance(self.mode, Mode), "TableSpec.mode", self.mode, "None or a mode such as ps.Async()")
        check(self.dtype in DTYPES, "TableSpec.dtype", self.dtype, f"one of {DTYPES}")
        check(self.wire in WIRES, "TableSpec.wire", self.wire, f"one of {WIRES}")
        if self.max_norm is not None:
            check_at_least("TableSpec.max_norm", self.max_norm, 0)
            is_normal = self.max_norm == 0 or self.max_norm >= MAX_NORM_MIN
            check(is_normal, "TableSpec.max_norm", self.max_norm, f"0, or from {MAX_NORM_MIN:g} on")
        if isinstance(self.initializer, Assigned):
            self._check_dense()

    def _check_dense(self) -> None:
        """Raise InvalidRequest for what depends on where a row begins: the size of a block of dense parameters must not matter (R16)."""
        table, want = f"of dense table {self.name!r}", "{}: a block of dense parameters is no row"
        check(not self.optimizer.is_row_wise, f"optimizer {table}", self.optimizer.label, want.format("an elementwise one"))
        check(self.max_norm is None, f"max_norm {table}", self.max_norm, want.format("None"))
        check(self.dtype == "float32", f"dtype {table}", self.dtype, want.format("'float32'"))
        check(self.wire != "int8", f"wire {table}", self.wire, want.format("'float32' or 'bfloat16'"))

    def difference(self, other: "TableSpec") -> str | None:
        """Return the name of the first field that makes two specs different tables, or None.

        Hyperparameters (learning rates and the like) are no such field: they may change from step to step.
        """
        for name in ("dim", "dtype", "wire", "initializer", "seed", "mode", "max_norm"):
            if getattr(self, name) != getattr(other, name):
                return name
        return "optimizer" if self.optimizer.layout != other.optimizer.layout else None

    def described(self, field: str) -> str:
        """Return a field of `difference` as errors say it."""
        return self.optimizer.layout if field == "optimizer" else str(getattr(self, field))

    def with_optimizer(self, optimizer: Optimizer) -> "TableSpec":
        """Return this table with another optimizer."""
        return replace(self, optimizer=optimizer)
