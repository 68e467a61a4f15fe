import subprocess
import sys
from pathlib import Path

from ps_proto import coordinator_pb2_grpc, parameter_server_pb2_grpc
from ps_proto.methods import COORDINATOR, METHODS, PARAMETER_SERVER

ROOT = Path(__file__).resolve().parent.parent / "proto"


def test_the_generated_modules_are_those_of_the_proto_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "generate.py", tmp_path], check=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "ps_proto").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "ps_proto").iterdir() if "_pb2" in path.name}
    assert len(fresh) == 12
    assert fresh == committed


def test_the_generated_stubs_offer_every_method() -> None:
    stubs = {PARAMETER_SERVER: parameter_server_pb2_grpc.ParameterServerServicer, COORDINATOR: coordinator_pb2_grpc.CoordinatorServicer}
    for method in METHODS.values():
        assert callable(getattr(stubs[method.service], method.name))
