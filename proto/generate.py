"""Generate the protobuf and gRPC modules of ps_proto: `python proto/generate.py [FOLDER]`.

Without a folder they are written beside their .proto files, where they are committed; the check generates into another folder and compares.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCE_ROOT = Path(__file__).resolve().parent


def generate(target: Path) -> list[Path]:
    """Write the modules of every .proto file under `target`/ps_proto; return their paths, sorted. A mistake in one raises SystemExit."""
    sources = sorted(str(path.relative_to(SOURCE_ROOT)) for path in SOURCE_ROOT.glob("ps_proto/*.proto"))
    target.mkdir(parents=True, exist_ok=True)
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    code = protoc.main(["protoc", f"-I{SOURCE_ROOT}", f"-I{files('grpc_tools') / '_proto'}", *outputs, *sources])
    if code != 0:
        raise SystemExit(code)
    return sorted(path for path in (target / "ps_proto").iterdir() if "_pb2" in path.name)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_ROOT)
