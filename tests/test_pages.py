"""What the pages name is there: files, other pages, commands with their verbs and options."""

import ast
import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from cyclopts import App, CycloptsError, MissingArgumentError

from pages import ROOT, Page, all_pages
from ps_server.edge.command import server
from ps_worker.cli import SCRIPT_VERBS, build_app
from ps_worker.cli.script_tokens import mark_script
from ps_worker.launch.command import worker

PAGES = all_pages()
LANGUAGES = {"python", "bash", "diff", "toml", "json", "text", ""}
PROGRAMS = ("rowstead", "ps-server", "ps-worker", "make", "python")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(page: Page) -> list[str]:
    """Return what the page would have a reader type: lines of blocks, and what stands between backticks."""
    lines = [line for block in page.blocks if block.language != "python" for line in block.text.splitlines()]
    typed = [line.removeprefix("$ ") for line in lines] + page.inline
    return [command for command in typed if not command.startswith(" ") and program_of(command) in PROGRAMS]


def program_of(command: str) -> str:
    words = [word for word in command.split() if not ASSIGNMENT.fullmatch(word)]
    return words[0] if words else ""


def words_of(command: str) -> list[str]:
    """Return the words of a command after its program, without the comment behind it."""
    words = shlex.split(command, comments=True)
    while ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    return words[1:]


def check_program(program: str, words: Sequence[str]) -> None:
    """Raise CycloptsError where the program does not take these words; a lone verb stands for any use of it."""
    if program == "rowstead":
        app, tokens = build_app(), [*words[:1], *(mark_script(words[1:]) if words[0] in SCRIPT_VERBS else words[1:])]
    else:
        app, tokens = App(), mark_script(words) if program == "ps-worker" else list(words)
        app.default(worker if program == "ps-worker" else server)
    try:
        app.parse_args(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError:
        if len(words) > 1:
            raise


def check_script(words: Sequence[str]) -> None:
    """Fail where a script of ours is not there or does not have one of the flags."""
    scripts = [position for position, word in enumerate(words) if word.startswith(("examples/", "benchmarks/"))]
    if scripts:
        path = ROOT / words[scripts[0]]
        assert path.is_file(), "no such script"
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        flags = {word.partition("=")[0].replace("--no-", "--") for word in words[scripts[0] + 1 :] if word.startswith("--")}
        assert flags <= texts, f"{path.name} does not have {sorted(flags - texts)}"


def check_make(words: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    for word in words:
        is_known = f"$({word.partition('=')[0]})" in makefile if "=" in word else word in targets.split()
        assert is_known, f"the Makefile has no {word}"


@each_page
def test_commands_are_taken_as_they_stand(page: Page) -> None:
    for command in commands(page):
        program, words = program_of(command), words_of(command)
        try:
            if program == "make":
                check_make(words)
            elif program != "python" and words:
                check_program(program, words)
            check_script(words)
        except (AssertionError, CycloptsError) as error:
            pytest.fail(f"{page.name}: {command!r}: {error}")


@each_page
def test_files_that_it_names_exist(page: Page) -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    names = [name for name in page.inline if re.fullmatch(r"[\w.*-]+(/[\w.*-]*)+", name) and name.split("/")[0] in folders]
    missing = [name for name in names if not any(ROOT.glob(name))]
    assert missing == []


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.prose) if "://" not in link]
    folder = (ROOT / page.name).parent
    assert [link for link in links if link and not (folder / link).exists()] == []


@each_page
def test_blocks_say_what_language_they_are(page: Page) -> None:
    assert {block.language for block in page.blocks} <= LANGUAGES
    for block in page.blocks:
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language == "":
            assert "import ps_worker" not in block.text, f"line {block.line} is Python that nobody runs"


@each_page
def test_what_it_leaves_to_another_test_is_in_that(page: Page) -> None:
    for block in page.blocks:
        if block.run_by is not None:
            test = ROOT / block.run_by
            assert block.language == "python", f"line {block.line}: only Python is run"
            assert test.is_file(), f"line {block.line}"
            assert Path(page.name).name in test.read_text(), f"line {block.line}: {block.run_by} does not speak of this page"
    assert page.text.count("<!-- run by ") == len([block for block in page.blocks if block.run_by]), "a comment that is above no block"


def test_the_readme_names_every_page() -> None:
    readme = Page.read("README.md")
    assert [page.name for page in PAGES[1:] if f"({page.name})" not in readme.prose] == []


def test_there_are_commands_to_check() -> None:
    found = {program_of(command) for page in PAGES for command in commands(page)}
    assert found >= {"rowstead", "make", "ps-server", "ps-worker"}
