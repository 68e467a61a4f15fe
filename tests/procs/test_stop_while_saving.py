"""Processes that are stopped while a store keeps a part of a checkpoint waiting."""

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import ps_worker as ps
from procs.started import started

OPTIONS = "aws_region=us-east-1,aws_access_key_id=any,aws_secret_access_key=any,allow_http=true,aws_endpoint_url=http://127.0.0.1"
NOTHING = (
    b'<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>'
)
EXIT_S = 30.0


class HungStore(ThreadingHTTPServer):
    """An object store in which nothing lies, and that never answers a put. `put`: set once one has come."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.put = threading.Event()
        self.may_end = threading.Event()
        super().__init__(("127.0.0.1", 0), Requests)


class Requests(BaseHTTPRequestHandler):
    server: HungStore

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(NOTHING)))
        self.end_headers()
        self.wfile.write(NOTHING)

    def do_PUT(self) -> None:
        self.server.put.set()
        self.server.may_end.wait()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def store() -> Iterator[HungStore]:
    with HungStore() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.may_end.set()
        server.shutdown()
        thread.join()


def test_training_goes_on_beside_a_store_that_hangs_and_a_stop_does_not_wait_for_it(tmp_path: Path, store: HungStore) -> None:
    options = f"--checkpoint-options={OPTIONS}:{store.server_port}"
    with (
        started(tmp_path, "coordinator", "coordinator", "--servers=1", options) as coordinator,
        started(tmp_path, "server-0", "server", f"--coordinator={coordinator.address}", "--name=server-0", options) as server,
    ):
        met: list[ps.ParameterServerError] = []
        with ps.connect(coordinator.address, rank=0, world_size=1, mode=ps.Async(), wait_timeout_s=EXIT_S) as client:
            client.create_table(ps.TableSpec("user", dim=2))

            def save() -> None:
                with ps.connect(coordinator.address, retry_timeout_s=0.1, wait_timeout_s=EXIT_S) as observer:
                    try:
                        observer.checkpoint("s3://bucket/run")
                    except ps.ParameterServerError as error:
                        met.append(error)

            saving = threading.Thread(target=save)
            saving.start()
            assert store.put.wait(EXIT_S)
            client.push("user", np.array([7], np.uint64), np.ones((1, 2), np.float32))
            assert client.pull("user", np.array([7], np.uint64)).shape == (1, 2)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(EXIT_S) == 0
        coordinator.process.send_signal(signal.SIGTERM)
        assert coordinator.process.wait(EXIT_S) == 0
        saving.join(EXIT_S)
        assert not saving.is_alive()
        assert len(met) == 1
        for process in (coordinator, server):
            assert "Traceback" not in process.log, process.log
            assert "stopping" in process.log
