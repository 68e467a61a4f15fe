"""`import ps_worker as ps` is light, and its names mean what they say whatever else is imported."""

import subprocess
import sys

import ps_worker as ps


def ran(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_loads_neither_torch_nor_grpc_nor_numba() -> None:
    loaded = "import sys, ps_worker as ps; ps.Adam(); ps.Sync(); ps.TableSpec('t', dim=1)\n"
    assert ran(loaded + "print([name for name in ('torch', 'grpc', 'numba') if name in sys.modules])") == "[]"


def test_a_client_loads_no_torch() -> None:
    assert ran("import sys, ps_worker as ps; ps.connect, ps.init, ps.local_cluster; print('torch' in sys.modules)") == "False"


def test_a_function_is_not_shadowed_by_the_module_of_its_name() -> None:
    code = """
import ps_worker.session, ps_worker.local_cluster
import ps_worker as ps
from ps_worker.session import current_session
print(ps.session is current_session, callable(ps.local_cluster))
"""
    assert ran(code) == "True True"


def test_every_public_name_is_there_and_listed() -> None:
    assert [name for name in ps.__all__ if not hasattr(ps, name)] == []
    assert {*ps.__all__, "nn", "optim"} <= {*dir(ps)}
    assert not hasattr(ps, "no_such_name")
