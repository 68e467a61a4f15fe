"""What the README shows runs in the other ways that it names, too: as a job, and either side of its diff."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import Page
from procs.hasty_script import hasty_environment
from procs.launched import launched

BLOCKS = Page.read("README.md").blocks
HELLO = next(block.text for block in BLOCKS if block.language == "python" and "ps.init" in block.text)
(DIFF,) = [block.text for block in BLOCKS if block.language == "diff"]

# What stands around the lines of the diff, on either side of it. The loss of one batch, before and after a step on it.
FRAME = """
import torch
{head}

def main() -> None:
{lines}
    words = torch.arange(320).view(64, 5)
    labels = (words % 7 == 0).any(1).float()
    for _ in range(2):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(words).squeeze(1), labels)
        print(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
{tail}

if __name__ == "__main__":
    main()
"""

SIDES = {  # the diff's mark, and what only this side has: at the top, before its lines, at the end
    "plain torch": ("-", "torch.sparse.check_sparse_tensor_invariants.enable()  # said, or its Adagrad warns", "", ""),
    "ours": ("+", "import ps_worker as ps", "    session = ps.init()", "    session.close()"),
}


def run(code: str, folder: Path) -> str:
    """Return what the code prints as a script of its own."""
    script = folder / "snippet.py"
    script.write_text(code)
    command = [sys.executable, "-W", "error", str(script)]
    ran = subprocess.run(command, env=hasty_environment(), capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.usefixtures("hasty")
def test_hello_runs_as_a_job(tmp_path: Path) -> None:
    with launched(tmp_path, HELLO, servers=1, workers=2) as launch:
        assert launch.wait() == 0, launch.err
        said = re.findall(r"^worker-(\d) \| rank (\d): loss (\S+)$", launch.out, re.MULTILINE)
        assert sorted((worker, rank) for worker, rank, _ in said) == [("0", "0"), ("1", "1")]
        assert all(float(loss) < 0.5 for *_, loss in said)  # a coin's is 0.69


@pytest.mark.parametrize("side", SIDES)
def test_either_side_of_the_diff_trains(side: str, tmp_path: Path) -> None:
    mark, head, begin, end = SIDES[side]
    lines = [line[1:] for line in DIFF.splitlines() if line[0] in (" ", mark)]
    before, after = run(FRAME.format(head=head, lines="\n".join([begin, *lines]), tail=end), tmp_path).split()
    assert float(after) < float(before)
