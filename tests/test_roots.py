"""Where checkpoints lie: what a user may give."""

from pathlib import Path
from typing import Any

import pytest

from ps_proto.errors import InvalidRequest
from ps_worker.roots import absolute_root


def test_a_folder_is_one_for_processes_of_other_directories_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_root("kept/here") == f"{tmp_path}/kept/here"
    assert absolute_root(Path("kept") / ".." / "there") == f"{tmp_path}/there"
    assert absolute_root("/data") == "/data"


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "file:///data/kept", "gs://bucket"])
def test_a_url_stays_as_it_is(url: str) -> None:
    assert absolute_root(url) == url


def test_none_stands_for_the_clusters_own() -> None:
    assert absolute_root(None) == ""


@pytest.mark.parametrize("wrong", ["", b"/data", 7, ["/data"]])
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="a folder or a URL"):
        absolute_root(wrong)
