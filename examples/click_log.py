"""Click logs in Criteo's format: a label, 13 counts and 26 hexadecimal categories a line, tab-separated; an empty field is missing.

`read_blocks` streams a log (plain, or gzip where the name ends in .gz) as numpy arrays, each rank its own part. Counts become
log(1 + count), where a missing or negative one counts as 0, as in DLRM's preprocessing (Naumov et al., arXiv 1906.00091). A category
becomes the id `field << 40 | value`, so one table holds all 26 fields without a vocabulary; a missing one reads as value 0, also as there.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from sharding.kernel import kernel

COUNTS = 13
CATEGORIES = 26
FIELDS = 1 + COUNTS + CATEGORIES
VALUE_BITS = 40

_TAB, _NEWLINE, _MINUS, _ZERO, _LOWER_A = (ord(character) for character in "\t\n-0a")
_DIGITS_MAX = 18  # what an int64 surely holds
_HEX_DIGITS_MAX = 16  # what a uint64 holds
_FINE, _NOT_A_LABEL, _NOT_A_COUNT, _NOT_A_CATEGORY, _TOO_FEW, _TOO_MANY = range(6)
_WANTED = {
    _NOT_A_LABEL: "the label must be 0 or 1",
    _NOT_A_COUNT: f"a count must be a whole number of at most {_DIGITS_MAX} digits, or empty",
    _NOT_A_CATEGORY: f"a category must be at most {_HEX_DIGITS_MAX} hexadecimal digits, or empty",
}


@dataclass(frozen=True)
class Block:
    """Some rows of a log: labels float32[n] of 0 and 1, counts float32[n, 13] as log(1 + count), ids uint64[n, 26]."""

    labels: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]
    ids: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(eq=False)
class MalformedLog(ValueError):
    """A line that is not of the format; `line` counts from 1."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.problem}."


def read_blocks(
    path: Path, rows_per_block: int, *, rank: int = 0, world_size: int = 1, rows_begin: int = 0, rows_end: int | None = None
) -> Iterator[Block]:
    """Yield a rank's part of the rows [rows_begin, rows_end), in blocks of `rows_per_block` rows, in the order of the file.

    Rows are dealt out like cards: of the rows read, the i-th goes to rank i % world_size. Every rank yields equally many blocks, so that
    all take equally many steps; only the last one can be shorter, even empty.
    Raises OSError where the file cannot be read, MalformedLog at a bad line of this rank (other ranks' lines are not looked into).
    """
    with _open(path) as stream:
        lines = islice(_lines(path, stream), rows_begin, rows_end)
        line_begin = rows_begin + 1
        while dealt := list(islice(lines, rows_per_block * world_size)):
            yield _parse(path, dealt[rank::world_size], line_begin + rank, world_size)
            line_begin += len(dealt)


def count_rows(path: Path) -> int:
    """Return how many rows a log has. Raises OSError or MalformedLog as `read_blocks` does; the lines are not looked into."""
    with _open(path) as stream:
        return sum(1 for _ in _lines(path, stream))


def category_ids(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the ids of categories: uint64[n, 26] -> uint64[n, 26], `field << 40 | value`.

    A value above 40 bits is hashed to 40 (Knuth's multiplicative hash, its upper bits), so it may share an id with another value of its
    field; two values of at most 40 bits never do.
    """
    hashed = (values * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - VALUE_BITS)
    short = np.where(values >> np.uint64(VALUE_BITS) == 0, values, hashed)
    return np.arange(CATEGORIES, dtype=np.uint64) << np.uint64(VALUE_BITS) | short


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; a gzip stream that is cut off or damaged raises MalformedLog, naming how far it could be read."""
    lines_count = 0
    try:
        for line in stream:
            yield line
            lines_count += 1
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise MalformedLog(path, lines_count + 1, f"the gzip stream cannot be read on ({error})") from error


def _parse(path: Path, lines: list[bytes], line_begin: int, line_step: int) -> Block:
    """Parse lines; the i-th one's number in the file is `line_begin + i * line_step`."""
    text = b"".join(lines)
    if not text.endswith(b"\n"):
        text += b"\n"  # the last line of a file may lack it
    labels = np.empty(len(lines), np.float32)
    counts = np.empty((len(lines), COUNTS), np.int64)
    values = np.empty((len(lines), CATEGORIES), np.uint64)
    row, field, problem = parse_lines(np.frombuffer(text, np.uint8), labels, counts, values)
    if problem != _FINE:
        raise MalformedLog(path, line_begin + row * line_step, _describe(lines[row], field, problem))
    return Block(labels, np.log1p(np.maximum(counts, 0)).astype(np.float32), category_ids(values))


def _describe(line: bytes, field: int, problem: int) -> str:
    fields = line.rstrip(b"\n").split(b"\t")
    if problem in (_TOO_FEW, _TOO_MANY):
        return f"it has {len(fields)} fields, but must have {FIELDS}: a label, {COUNTS} counts and {CATEGORIES} categories"
    return f"field {field + 1} of {FIELDS} is {fields[field].decode(errors='replace')!r}, but {_WANTED[problem]}"


@kernel
def parse_lines(
    text: npt.NDArray[np.uint8], labels: npt.NDArray[np.float32], counts: npt.NDArray[np.int64], values: npt.NDArray[np.uint64]
) -> tuple[int, int, int]:
    """Write the numbers of `len(labels)` lines; return (row, field, problem), where problem 0 means that all were fine.

    text  uint8[bytes], read-only, each line ended by a newline.
    labels  float32[n], counts  int64[n, 13], values  uint64[n, 26]: written, a missing field as 0; after a problem they mean nothing.
    """
    at = 0
    for row in range(labels.size):
        for field in range(FIELDS):
            begin = at
            number = np.uint64(0)
            negative = False
            base = np.uint64(16 if field > COUNTS else 10)
            while text[at] != _TAB and text[at] != _NEWLINE:
                digit = np.uint64(text[at]) - np.uint64(_ZERO)  # below '0' it wraps round and is refused as too large
                if field > COUNTS and digit > np.uint64(9):
                    digit = np.uint64(text[at] | 0x20) - np.uint64(_LOWER_A) + np.uint64(10)  # 0x20 makes a letter small
                    if digit < np.uint64(10):
                        digit = base
                if 0 < field <= COUNTS and at == begin and text[at] == _MINUS:
                    negative = True
                elif digit >= base:
                    return row, field, _NOT_A_LABEL if field == 0 else _NOT_A_COUNT if field <= COUNTS else _NOT_A_CATEGORY
                else:
                    number = number * base + digit
                at += 1
            length = at - begin
            if text[at] == _NEWLINE and field < FIELDS - 1:
                return row, field, _TOO_FEW
            if text[at] == _TAB and field == FIELDS - 1:
                return row, field, _TOO_MANY
            at += 1
            if field == 0:
                if length != 1 or number > np.uint64(1):
                    return row, field, _NOT_A_LABEL
                labels[row] = np.float32(number)
            elif field <= COUNTS:
                if length > _DIGITS_MAX or (negative and length == 1):
                    return row, field, _NOT_A_COUNT
                counts[row, field - 1] = -np.int64(number) if negative else np.int64(number)
            else:
                if length > _HEX_DIGITS_MAX:
                    return row, field, _NOT_A_CATEGORY
                values[row, field - 1 - COUNTS] = number
    return -1, -1, _FINE
