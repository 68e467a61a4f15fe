"""The plots of W7 and W8, from made-up results: every curve and mode is drawn, with what it is of, and always the same bytes."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.plots.__main__ import main
from benchmarks.plots.plot import short

RUN = {
    "machine": {"cpu": "A processor", "cores": 2, "memory": "8388608 kB", "system": "Linux 6"},
    "commit": "0123456789abcdef",
    "date": "2026-01-02",
    "quick": False,
}


def spread(value: float) -> dict[str, Any]:
    return {"median": value, "min": 0.9 * value, "max": 1.1 * value, "rounds": [value]}


def curve(case: str, axis: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, Any]:
    points = [{"at": at, "left_out": None, **{name: spread(at / 100 + k) for k, name in enumerate(names)}} for at in sizes]
    left_out = {"at": 10 * sizes[-1], "left_out": "no memory"}
    return {
        "case": case,
        "title": f"Title of {case}",
        "axis": axis,
        "units": dict.fromkeys(names, "ms"),
        "note": "",
        "points": [*points, left_out],
    }


def scaling_run() -> dict[str, Any]:
    curves = [
        curve("W7-ids", "ids per pull", ("pull", "np.take", "np.take / pull"), (100, 1_000)),
        curve("W7-rows", "rows held", ("pull", "push", "np.take", "memory"), (10_000, 1_000_000)),
        curve("W7-servers", "servers", ("pull", "np.take"), (1, 2, 4)),
        curve("W7-workers 2048", "workers", ("samples", "of linear", "flat out"), (1, 4, 16)),
    ]
    return {**RUN, "curves": curves}


def staleness_run(auc: dict[str, list[float]] | None) -> dict[str, Any]:
    findings = [
        {"mode": mode, "stragglers": stragglers, "step_ms": 60.0, "slowest_ms": 55.0, "idle": 0.1}
        for mode in ("sync", "4", "async")
        for stragglers in ("none", "one", "random")
    ]
    return {**RUN, "workers": 8, "accelerator_ms": 50.0, "osdi_14_idle": {"sync": 0.5, "16": 0.017}, "auc": auc, "findings": findings}


def draw(folder: Path, *runs: dict[str, Any]) -> dict[str, str]:
    """Return the text of each file that was drawn, by its name."""
    for number, run in enumerate(runs):
        (folder / f"{number}.json").write_text(json.dumps(run))
    assert main([*[str(folder / f"{number}.json") for number in range(len(runs))], "--out", str(folder / "plots")]) == 0
    return {path.name: path.read_text() for path in sorted((folder / "plots").iterdir())}


def words(svg: str) -> list[str]:
    """Return the texts in it."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_every_curve_is_drawn_with_what_it_is_of(tmp_path: Path) -> None:
    drawn = draw(tmp_path, scaling_run())
    assert list(drawn) == ["scaling-ids.svg", "scaling-memory.svg", "scaling-rows.svg", "scaling-servers.svg", "scaling-workers-2048.svg"]
    for svg in drawn.values():
        assert "A processor, 2 cores, 8 GiB, Linux 6; commit 0123456789ab, 2026-01-02" in words(svg)
    assert {"ids per pull", "time, ms", "a pull", "np.take of the same rows, in the worker", "1 k"} <= set(words(drawn["scaling-ids.svg"]))
    assert {"a pull", "a push"} <= set(words(drawn["scaling-rows.svg"]))
    assert {"memory, bytes a row", "row and state alone"} <= set(words(drawn["scaling-memory.svg"]))
    assert "Title of W7-servers" in words(drawn["scaling-servers.svg"])
    workers = words(drawn["scaling-workers-2048.svg"])
    assert {"thousand samples a second", "linear", "reported by seeds of this field, times ours with 1"} <= set(workers)
    assert "160" not in workers  # what was left out is not on the axis


def test_every_mode_is_drawn_and_auc_where_there_is_one(tmp_path: Path) -> None:
    drawn = draw(tmp_path, staleness_run(auc=None))
    assert list(drawn) == ["staleness-idle.svg", "staleness-step.svg"]
    for svg in drawn.values():
        assert {"sync", "bound 4", "async", "no stragglers", "one worker 3 times slower all along"} <= set(words(svg))
    assert "OSDI'14, on a cluster" in words(drawn["staleness-idle.svg"])
    drawn = draw(tmp_path, staleness_run(auc={"sync": [0.75, 0.76], "4": [0.74, 0.75]}))
    assert "staleness-auc.svg" in drawn
    assert {"AUC", "sync", "bound 4"} <= set(words(drawn["staleness-auc.svg"]))


def test_the_same_results_are_the_same_bytes_and_small_sizes_say_so(tmp_path: Path) -> None:
    for name in ("first", "second", "quick"):
        (tmp_path / name).mkdir()
    first, second = (draw(tmp_path / name, staleness_run(None)) for name in ("first", "second"))
    assert first == second
    quick = draw(tmp_path / "quick", {**staleness_run(None), "quick": True})
    assert all(any("small sizes: the times mean nothing" in text for text in words(svg)) for svg in quick.values())


@pytest.mark.parametrize(("value", "said"), [(0.5, "0.5"), (100, "100"), (30_000, "30 k"), (1_500_000, "1.5 M")])
def test_numbers_of_axes_are_short(value: float, said: str) -> None:
    assert short(value) == said
