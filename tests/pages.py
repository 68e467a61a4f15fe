"""The pages for readers, README.md and docs/*.md, and the blocks of code in them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"( *)```(\S*)")
_RUN_BY = re.compile(r"<!-- run by (\S+) -->")
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block. `language`: as it stands behind the fence; `line`: of its first line, from 1.

    `run_by` is the test that the comment right above names, as in `<!-- run by tests/procs/test_docs_hybrid.py -->`: one that gives the
    block what it needs, such as a job of two workers. A block of Python without such a comment runs with the others of its page.
    """

    language: str
    text: str
    line: int
    run_by: str | None


@dataclass(frozen=True)
class Page:
    """A page. `name`: its path in the repository."""

    name: str
    text: str

    @classmethod
    def read(cls, name: str) -> "Page":
        return cls(name, (ROOT / name).read_text(encoding="utf-8"))

    @property
    def blocks(self) -> list[Block]:
        lines = self.text.splitlines()
        fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
        assert len(fences) % 2 == 0, f"a fence of {self.name} is not closed"
        return [_block(lines, begin, end) for begin, end in zip(fences[::2], fences[1::2], strict=True)]

    @property
    def prose(self) -> str:
        """Return the text without its blocks."""
        return re.sub(r"^( *)```.*?^\1```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    @property
    def inline(self) -> list[str]:
        """Return what stands between backticks in the prose."""
        return _INLINE.findall(self.prose)

    def script(self) -> str:
        """Return the blocks of Python that run on the page itself, as one script in which each line has the number that it has here."""
        lines = [""] * len(self.text.splitlines())
        for block in self.blocks:
            if block.language == "python" and block.run_by is None:
                its_lines = block.text.splitlines()
                lines[block.line - 1 : block.line - 1 + len(its_lines)] = its_lines
        return "\n".join(lines) + "\n"


def _block(lines: list[str], begin: int, end: int) -> Block:
    fence = _FENCE.match(lines[begin])
    assert fence is not None
    above = next((line for line in reversed(lines[:begin]) if line.strip()), "")
    mark = _RUN_BY.fullmatch(above.strip())
    return Block(fence[2], textwrap.dedent("\n".join(lines[begin + 1 : end])), begin + 2, mark[1] if mark else None)


def all_pages() -> list[Page]:
    """Return every page, README.md first."""
    return [Page.read(name) for name in ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]]
