import gzip
import io
from pathlib import Path

import numpy as np
import pytest

from click_log import Block, MalformedLog, category_ids, count_rows, parse_lines, read_blocks
from metrics import auc, log_loss
from naive.click_log import parse_line
from planted_log import write_planted_log

CTR_80K = Path(__file__).resolve().parents[2] / "shared" / "data" / "ctr-80k.test.tsv.gz"


def line(label: str = "1", counts: dict[int, str] | None = None, categories: dict[int, str] | None = None) -> str:
    """Return a line whose counts and categories are missing, but for those given by position."""
    fields = [label] + [""] * 39
    for position, text in (counts or {}).items():
        fields[1 + position] = text
    for position, text in (categories or {}).items():
        fields[14 + position] = text
    return "\t".join(fields) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.tsv"


def read_all(path: Path, **part: int) -> Block:
    """Return the rows of all blocks as one."""
    blocks = list(read_blocks(path, 7, **part))
    return Block(*(np.concatenate([getattr(block, field) for block in blocks]) for field in ("labels", "counts", "ids")))


def same(left: Block, right: Block) -> bool:
    return all(np.array_equal(getattr(left, field), getattr(right, field)) for field in ("labels", "counts", "ids"))


# --- what a field becomes -----------------------------------------------------------------------------------------------------


def test_a_line_becomes_label_counts_and_ids(log: Path) -> None:
    log.write_text(line("1", {0: "0", 1: "7", 12: "2011298"}, {0: "ff", 25: "ABCDEF0123"}))
    block = read_all(log)
    assert [array.dtype.name for array in (block.labels, block.counts, block.ids)] == ["float32", "float32", "uint64"]
    assert block.labels.tolist() == [1.0]
    assert block.counts[0, [0, 1, 12]].tolist() == np.log1p([0, 7, 2011298]).astype(np.float32).tolist()
    assert block.ids[0, [0, 25]].tolist() == [0xFF, 25 << 40 | 0xABCDEF0123]


def test_a_missing_field_reads_as_zero_and_so_does_a_negative_count(log: Path) -> None:
    log.write_text(line("0", {7: "-1"}))
    block = read_all(log)
    assert block.counts.tolist() == [[0.0] * 13]
    assert block.ids.tolist() == [[position << 40 for position in range(26)]]


def test_categories_of_40_bits_keep_their_value() -> None:
    values = np.full((1, 26), 2**40 - 1, np.uint64)
    assert category_ids(values).tolist() == [[position << 40 | 2**40 - 1 for position in range(26)]]


def test_larger_categories_are_hashed_into_their_field() -> None:
    values = np.random.default_rng(0).integers(2**40, 2**64, (200, 26), np.uint64)
    values[0], values[1] = 2**40, 2**64 - 1
    ids = category_ids(values)
    assert (ids >> np.uint64(40) == np.arange(26, dtype=np.uint64)).all()
    assert len(np.unique(ids)) == ids.size  # none of these collide


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
def test_a_log_reads_as_its_slow_twin_does_plain_or_compressed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    planted = write_planted_log(path, rows=50, seed=3)
    block = read_all(path)
    with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as stream:
        twins = [parse_line(text) for text in stream]
    assert block.labels.tolist() == [label for label, _, _ in twins] == planted.labels.tolist()
    assert block.counts.tolist() == np.array([counts for _, counts, _ in twins], np.float32).tolist()
    assert block.ids.tolist() == [ids for _, _, ids in twins]


def test_the_last_line_may_lack_its_newline(log: Path) -> None:
    log.write_text(line("0") + line("1").removesuffix("\n"))
    assert read_all(log).labels.tolist() == [0.0, 1.0]


def test_a_real_log_reads_as_its_slow_twin_does() -> None:
    if not CTR_80K.exists():
        pytest.skip(f"{CTR_80K} is not on this machine")
    block = read_all(CTR_80K, rows_end=500)
    with gzip.open(CTR_80K, "rt") as stream:
        twins = [parse_line(text) for text, _ in zip(stream, range(500), strict=False)]
    assert block.labels.tolist() == [label for label, _, _ in twins]
    assert block.ids.tolist() == [ids for _, _, ids in twins]


@pytest.mark.skipif(not hasattr(parse_lines, "signatures"), reason="without the compiler there is nothing to compile")
def test_the_parser_is_compiled_once(log: Path) -> None:
    log.write_text(line() * 20)
    read_all(log)
    read_all(log, rank=1, world_size=3)
    assert len(parse_lines.signatures) == 1


# --- who reads what -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 14, 15, 20, 21, 22])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_rows_like_cards_in_equally_many_blocks(log: Path, rows: int, world_size: int) -> None:
    log.write_text("".join(line("0", {0: str(row)}) for row in range(rows)))
    blocks = [list(read_blocks(log, 7, rank=rank, world_size=world_size)) for rank in range(world_size)]
    seen = [[round(float(np.expm1(count))) for block in of_rank for count in block.counts[:, 0]] for of_rank in blocks]
    assert seen == [list(range(rank, rows, world_size)) for rank in range(world_size)]
    assert {len(of_rank) for of_rank in blocks} == {-(-rows // (7 * world_size))}
    assert all(len(block) == 7 for of_rank in blocks for block in of_rank[:-1])


def test_a_range_of_rows_is_read_as_if_it_were_the_file(log: Path, tmp_path: Path) -> None:
    lines = [line("0", {0: str(row)}) for row in range(40)]
    log.write_text("".join(lines))
    excerpt = tmp_path / "excerpt.tsv"
    excerpt.write_text("".join(lines[5:33]))
    assert same(read_all(log, rank=1, world_size=2, rows_begin=5, rows_end=33), read_all(excerpt, rank=1, world_size=2))


@pytest.mark.parametrize("rows", [0, 1, 19])
def test_rows_are_counted(log: Path, rows: int) -> None:
    log.write_text((line() * rows).removesuffix("\n"))
    assert count_rows(log) == rows


# --- what is refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (line("2"), "field 1 of 40 is '2', but the label must be 0 or 1"),
        (line(""), "field 1 of 40 is '', but the label must be 0 or 1"),
        (line("01"), "field 1 of 40 is '01', but the label must be 0 or 1"),
        (line(counts={0: "1.5"}), "field 2 of 40 is '1.5', but a count must be a whole number of at most 18 digits, or empty"),
        (line(counts={12: "-"}), "field 14 of 40 is '-', but a count"),
        (line(counts={12: "1-"}), "field 14 of 40 is '1-', but a count"),
        (line(counts={12: "a"}), "field 14 of 40 is 'a', but a count"),
        (line(counts={3: "1" * 19}), "but a count"),
        (line(categories={0: "-1"}), "field 15 of 40 is '-1', but a category must be at most 16 hexadecimal digits, or empty"),
        (line(categories={25: "g"}), "field 40 of 40 is 'g', but a category"),
        (line(categories={25: "`"}), "field 40 of 40 is '`', but a category"),
        (line(categories={25: "@"}), "field 40 of 40 is '@', but a category"),
        (line(categories={25: "é"}), "field 40 of 40 is 'é', but a category"),
        (line(categories={25: "1" * 17}), "but a category"),
        (line(categories={25: "ff\r"}), "field 40 of 40 is 'ff\\r', but a category"),
        ("\n", "it has 1 fields, but must have 40: a label, 13 counts and 26 categories"),
        ("1\t2\t3\n", "it has 3 fields, but must have 40"),
        (line().removesuffix("\n") + "\t\n", "it has 41 fields, but must have 40"),
    ],
)
def test_a_bad_field_is_named_with_its_file_line_and_place(log: Path, bad: str, problem: str) -> None:
    log.write_bytes((line() * 17 + bad + line()).encode())
    with pytest.raises(MalformedLog) as raised:
        read_all(log)
    assert str(raised.value).startswith(f"{log}, line 18: ")
    assert problem in str(raised.value)


def test_the_line_number_is_the_files_whatever_part_a_rank_reads(log: Path) -> None:
    log.write_text(line() * 22 + line("x") + line())
    for part in ({"rank": 1, "world_size": 3, "rows_begin": 3}, {"rank": 0, "world_size": 2}, {"rows_begin": 22}):
        with pytest.raises(MalformedLog, match="line 23: "):
            read_all(log, **part)


@pytest.mark.parametrize("damage", ["cut", "garbled", "not gzip"])
def test_a_damaged_gzip_is_an_error_that_says_how_far_it_could_be_read(tmp_path: Path, damage: str) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream:
        stream.write((line() * 1_000).encode())
    data = packed.getvalue()
    path = tmp_path / "log.tsv.gz"
    path.write_bytes({"cut": data[:-12], "garbled": data[:12] + b"\xff" * 40 + data[52:], "not gzip": line().encode()}[damage])
    with pytest.raises(MalformedLog, match=r"log\.tsv\.gz, line \d+: the gzip stream cannot be read on"):
        count_rows(path)


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_blocks(tmp_path / "none.tsv", 7))


# --- the made-up log ----------------------------------------------------------------------------------------------------------


def test_a_planted_log_is_a_function_of_its_seed(tmp_path: Path) -> None:
    write_planted_log(tmp_path / "a.tsv", rows=30, seed=1)
    write_planted_log(tmp_path / "b.tsv", rows=30, seed=1)
    write_planted_log(tmp_path / "c.tsv", rows=30, seed=2)
    assert (tmp_path / "a.tsv").read_text() == (tmp_path / "b.tsv").read_text() != (tmp_path / "c.tsv").read_text()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_planted_model_scores_well_and_is_calibrated(tmp_path: Path, seed: int) -> None:
    planted = write_planted_log(tmp_path / "log.tsv", rows=4_000, seed=seed)
    chance = np.full(4_000, np.log(planted.labels.mean() / (1 - planted.labels.mean())))
    assert 0.2 < planted.labels.mean() < 0.35
    assert 0.8 < auc(planted.labels, planted.logits) < 0.95
    best = log_loss(planted.labels, planted.logits)
    assert best < log_loss(planted.labels, chance)
    assert best <= min(log_loss(planted.labels, planted.logits + shift) for shift in (-0.5, 0.5))


def test_a_planted_log_has_missing_fields(tmp_path: Path) -> None:
    write_planted_log(tmp_path / "log.tsv", rows=100, seed=0)
    block = read_all(tmp_path / "log.tsv")
    assert (block.counts == 0).any(axis=0).all()
    assert (block.ids & np.uint64(2**40 - 1) == 0).any()
