"""The examples as a user starts them: each learns, alone and in a job of two workers."""

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

import ps_worker as ps
from click_batches import ClickData, measure
from plain_dlrm import initial_rows, train, vocabulary
from planted_log import write_planted_log
from procs.hasty_script import hasty_environment
from procs.started import ROWSTEAD

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT.parent / "shared" / "data"
RUN_TIMEOUT_S = 100.0

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


def alone(example: str, *arguments: str) -> Ran:
    """Run the example without a launcher, in this process: it has imported torch."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = import_module(example.removesuffix(".py")).main(arguments)
    return Ran([example, *arguments], code or 0, out.getvalue(), err.getvalue())


def as_a_script(example: str, *arguments: str) -> Ran:
    return ran([sys.executable, str(EXAMPLES / example), *arguments])


def launched(example: str, *arguments: str, servers: int = 1) -> Ran:
    flags = (f"--servers={servers}", "--workers=2", "--log-level=warning")
    return ran([*ROWSTEAD, "launch", *flags, str(EXAMPLES / example), *arguments])


def ran(command: list[str]) -> Ran:
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=hasty_environment())


def number(pattern: str, text: str) -> float:
    """Return the number that `pattern` finds, of the last match."""
    found = re.findall(pattern, text)
    assert found, text
    return float(found[-1].replace(",", ""))


# --- DLRM -----------------------------------------------------------------------------------------------------------------------


def test_dlrm_learns_and_says_how_it_went() -> None:
    job = launched("train_dlrm.py", "--rows", "10000", "--epochs", "2", "--batch", "128", servers=2)
    assert job.returncode == 0, job.stderr
    assert re.search(r"worker-0 \| epoch 1 \[#{30}\] 100% +9,000 rows +[\d,]+ samples/s, loss 0\.\d{4}", job.stdout)
    assert len(re.findall(r"epoch [12]: log loss 0\.\d+, AUC 0\.\d+, [\d,]+ samples/s", job.stdout)) == 2
    assert len(re.findall(r"server-[01]: [\d,]+ rows held, [\d,.]+ MB in, [\d,.]+ MB out", job.stdout)) == 4
    reached, best = re.findall(r"  AUC +(0\.\d+)   best reachable (0\.\d+)", job.stdout)[0]
    assert 0.78 < float(reached) <= float(best), job.stdout
    assert number(r"  rows held +([\d,]+)", job.stdout) == sum(
        int(rows.replace(",", "")) for rows in re.findall(r"server-[01]: ([\d,]+) rows held", job.stdout)[-2:]
    )
    assert "worker-1" not in job.stdout  # rank 0 speaks for all


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--mode=async", "--table-dtype=bfloat16"], marks=pytest.mark.deep),
        ["--mode=bounded", "--bound=2", "--wire=int8", "--prefetch", "--depth=4", "--overlap-pushes", "--slow-ms=1"],
    ],
    ids=" ".join,
)
def test_dlrm_learns_in_the_other_modes(options: list[str]) -> None:
    job = launched("train_dlrm.py", "--rows", "8000", "--batch", "64", *options)
    assert job.returncode == 0, job.stderr
    assert number(r"  AUC +(0\.\d+)", job.stdout) > 0.75, job.stdout
    (most,) = re.findall(r"  staleness +[\d.]+ steps in the mean of all pulls, at most (\d+)\n", job.stdout)
    assert "bounded" not in options[0] or int(most) <= 2, job.stdout


def test_dlrm_trains_alone_on_a_log_of_ones_own(tmp_path: Path) -> None:
    write_planted_log(tmp_path / "train.tsv.gz", rows=1_001, seed=2)
    write_planted_log(tmp_path / "test.tsv", rows=300, seed=2)
    logs = ("--train", str(tmp_path / "train.tsv.gz"), "--test", str(tmp_path / "test.tsv"))
    job = as_a_script("train_dlrm.py", *logs, "--batch", "100")
    assert job.returncode == 0, job.stderr
    assert "1 x 1,001 rows" in job.stdout
    assert "best reachable" not in job.stdout


@pytest.mark.deep  # test_training_beside_torch.py compares smaller models each time
def test_dlrm_ends_with_the_same_bits_with_1_and_5_servers() -> None:
    checksums = set()
    for servers in (1, 5):
        job = launched("train_dlrm.py", "--rows", "2001", "--batch", "128", "--checksum", servers=servers)
        assert job.returncode == 0, job.stderr
        assert f"servers {servers}, workers 2" in job.stdout
        checksums |= set(re.findall(r"  checksum +([0-9a-f]{64})\n", job.stdout))
    assert len(checksums) == 1


def test_what_is_wrong_with_the_data_is_said_in_a_sentence(tmp_path: Path) -> None:
    job = alone("train_dlrm.py", "--train", str(tmp_path / "none.tsv"))
    assert job.returncode == 2
    assert "No such file" in job.stderr
    assert "none.tsv" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_batch_that_cannot_be_shared_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.local_cluster(servers=1) as cluster:
        for variable, value in (("ROWSTEAD_COORDINATOR", cluster.address), ("RANK", "0"), ("WORLD_SIZE", "2")):
            monkeypatch.setenv(variable, value)
        job = alone("train_dlrm.py", "--rows", "200", "--batch", "63")
    assert job.returncode == 2
    assert "--batch is 63, but 2 workers share it" in job.stderr
    assert "Traceback" not in job.stderr


# --- DLRM, its MLPs under DDP -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
def test_hybrid_dlrm_learns_on_a_log_that_ranks_share_unequally(mode: str, tmp_path: Path) -> None:
    rows = "7112"  # 6,401 of them to train on: 50 batches for either rank, and one more row for rank 0
    job = launched("hybrid_ddp.py", "--rows", rows, "--batch", "128", "--mode", mode, "--save", str(tmp_path / "model"))
    assert job.returncode == 0, job.stderr
    assert f"DLRM, rows {mode}, dense by DDP over gloo, workers 2" in job.stdout
    reached, best = re.findall(r"AUC (0\.\d+)", job.stdout)
    assert 0.70 < float(reached) <= float(best), job.stdout
    assert (tmp_path / "model" / "index.json").exists()


def test_hybrid_dlrm_learns_alone() -> None:
    job = as_a_script("hybrid_ddp.py", "--rows", "3000", "--batch", "128", "--checksum")
    assert job.returncode == 0, job.stderr
    assert number(r"samples/s, ([\d,]+) rows held", job.stdout) > 500
    assert re.search(r"  checksum +[0-9a-f]{64}\n", job.stdout)


# --- the others -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [pytest.param(alone, marks=pytest.mark.deep), launched])
def test_deepfm_learns(run: Run) -> None:
    job = run("deepfm.py", "--rows", "6000")
    assert job.returncode == 0, job.stderr
    before, _, after, best = (float(auc) for auc in re.findall(r"AUC (0\.\d+)", job.stdout))
    assert before < 0.6, job.stdout
    assert 0.70 < after <= best, job.stdout


@pytest.mark.parametrize("run", [alone, pytest.param(launched, marks=pytest.mark.deep)])
def test_two_tower_learns(run: Run) -> None:
    job = run("two_tower.py", "--steps", "150")
    assert job.returncode == 0, job.stderr
    before, after = (float(share) for share in re.findall(r"recall@10 ([\d.]+)%", job.stdout))
    assert before < 5.0, job.stdout  # to guess gives 1.7
    assert after > 10.0, job.stdout


@pytest.mark.parametrize("run", [alone, pytest.param(launched, marks=pytest.mark.deep)])
def test_image_classifier_learns(run: Run) -> None:
    job = run("image_classifier.py", "--steps", "100")
    assert job.returncode == 0, job.stderr
    before, after = (float(share) for share in re.findall(r"accuracy ([\d.]+)%", job.stdout))
    assert before < 40.0, job.stdout  # to guess gives 25
    assert after > 60.0, job.stdout


def test_a_backup_worker_buys_time_for_what_is_dropped() -> None:
    job = as_a_script("straggler.py", "--workers", "3", "--steps", "40", "--slow-ms", "150")
    assert job.returncode == 0, job.stderr
    rows = re.findall(r"^ps\.Sync\(.*\) +([\d.]+) ms +(\d+) +(\d+) +(0\.\d+)$", job.stdout, re.MULTILINE)
    (waits_ms, waits_late, waits_dropped, waits_loss), (goes_ms, goes_late, goes_dropped, goes_loss) = [
        [float(x) for x in row] for row in rows
    ]
    assert waits_ms > 150.0, job.stdout
    assert goes_ms < waits_ms / 1.5, job.stdout
    assert (waits_late, waits_dropped) == (0, 0)
    assert 0 < goes_late <= goes_dropped, job.stdout
    assert max(waits_loss, goes_loss) < 0.65, job.stdout  # to guess gives 0.69


# --- real data ------------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_synchronous_dlrm_is_as_good_as_plain_torch_on_a_real_log() -> None:
    train_path, test_path = DATA / "ctr-80k.train.tsv.gz", DATA / "ctr-80k.test.tsv.gz"
    if not train_path.exists() or not test_path.exists():
        pytest.skip(f"{DATA} has no ctr-80k on this machine")
    data = ClickData.of(train_path, test_path)
    ids = vocabulary(data)
    _, plain = measure(train(data, 512, 0, ids, initial_rows(ids, [0])[0]), data)
    assert plain >= 0.710  # else there is nothing to compare with
    job = launched("train_dlrm.py", f"--train={train_path}", f"--test={test_path}", servers=2)
    assert job.returncode == 0, job.stderr
    assert abs(number(r"  AUC +(0\.\d+)", job.stdout) - plain) <= 0.001
    assert number(r"  rows held +([\d,]+)", job.stdout) == 167_018  # the distinct ids of the training rows: measuring creates none
