"""The optimizer and the initializer of docs/own-optimizer.md, in processes that find them by a setting, an entry point or a variable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ps_worker as ps
from pages import Page
from procs.launched import launched
from procs.started import rowstead

MODULE, TRAIN, BESIDE_A_LOOP = [block.text for block in Page.read("docs/own-optimizer.md").blocks if block.language == "python"]
HALF = """
from dataclasses import dataclass
from ps_proto.values import Optimizer, register_optimizer

@register_optimizer
@dataclass(frozen=True)
class Half(Optimizer):
    kind = "half"
    lr: float = 0.1
"""
WORKER = """
import sys

import half
import signum
import ps_worker as ps

with ps.connect(sys.argv[1], rank=0, world_size=1, mode=ps.Sync()) as client:
    client.create_table(ps.TableSpec("user", dim=8, optimizer=ps.ClippedByValue(signum.Signum(lr=0.25)), initializer=signum.Signs(0.5)))
    client.push("user", [7], [[1, -1, 1, -1, 1, -1, 1, -1]])
    client.end_step()
    client.flush()
    assert set(client.pull("user", [7]).ravel().tolist()) <= {-0.75, -0.25, 0.25, 0.75}
    try:
        client.create_table(ps.TableSpec("item", dim=8, optimizer=half.Half()))
    except ps.InvalidRequest as error:
        print(error)
    client.create_table(ps.TableSpec("item", dim=4))  # the name is free again
    client.push("item", [7], [[1, 1, 1, 1]])
"""
JOB = """
import ps_worker as ps
import signum

session = ps.init(mode=ps.Sync())
session.client.create_table(ps.TableSpec("user", dim=2, optimizer=signum.Signum(lr=0.25)))
session.client.push("user", [7], [[1, -1]])
session.client.end_step()
session.client.flush()
print("rows", session.client.pull("user", [7]).tolist())
session.close()
"""


def run(script: str, folder: Path, *arguments: str) -> str:
    """Run a script that lies in `folder`, there; return what it prints."""
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, "-W", "error", str(path), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_trains_as_it_says_and_equals_a_plain_loop(tmp_path: Path) -> None:
    (tmp_path / "signum.py").write_text(MODULE)
    run(BESIDE_A_LOOP, tmp_path)
    run(TRAIN, tmp_path)


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "signum-1.0.dist-info"  # what pip makes of a package
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: signum\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rowstead.plugins]\nsignum = signum\nhalf = half\n")
    (tmp_path / "signum.py").write_text(MODULE)
    (tmp_path / "half.py").write_text(HALF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ps.local_cluster(servers=1) as cluster:
        refusal = run(WORKER, tmp_path, cluster.address)
        assert refusal.startswith("optimizer is 'half', but must be one that this server can run: one of ['adagrad', ")
        assert "a plugin registers in every server" in refusal
        seen = rowstead("status", cluster.address)
        assert (seen.returncode, seen.stderr) == (0, "")
        assert "clipped_by_value+signum" in seen.stdout
        monkeypatch.delenv("PYTHONPATH")
        unseen = rowstead("status", cluster.address)
    assert unseen.returncode == 1
    assert "optimizer is 'signum', but must be one of ['adagrad'," in unseen.stderr
    assert "or one that a plugin registers here too" in unseen.stderr


def test_a_launched_job_tells_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "signum.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugins"))
    with launched(tmp_path, JOB, workers=1, flags=("--plugin", "signum")) as launch:
        assert launch.wait() == 0, launch.err
    assert "rows [[-0.25, 0.25]]" in launch.out


@pytest.mark.parametrize("verb", [("server", "--coordinator=127.0.0.1:9"), ("coordinator", "--servers=1")], ids=lambda verb: verb[0])
def test_a_process_that_cannot_import_a_plugin_does_not_start(
    tmp_path: Path, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signum.py").write_text("value = 1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = rowstead(*verb, "--plugins=json,signum")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    sentence = "Plugin 'signum', which the setting plugins names, cannot be imported: ZeroDivisionError: division by zero"
    assert f"{sentence} ({tmp_path / 'signum.py'}, line 1). Mend it" in line


def test_a_local_cluster_says_which_plugin_it_cannot_import() -> None:
    with pytest.raises(ps.ClusterFailed, match=r"ended with exit code 2[^$]*Plugin 'no_such_module', which the setting plugins names"):
        ps.local_cluster(servers=1, plugins=["no_such_module"]).start()


def test_a_worker_that_cannot_import_a_plugin_does_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "ROWSTEAD_PLUGINS", "no_such_module")
    with pytest.raises(ps.PluginFailed, match="Plugin 'no_such_module', which ROWSTEAD_PLUGINS names, cannot be imported"):
        ps.connect("127.0.0.1:9")
    seen = rowstead("status", "127.0.0.1:9")
    assert seen.returncode == 2
    assert seen.stderr.startswith("Plugin 'no_such_module', which ROWSTEAD_PLUGINS names")
