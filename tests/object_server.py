"""moto's S3 on this machine, as a process of its own: what a test of object stores talks to."""

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from polling import poll_until


@contextmanager
def object_server(bucket: str) -> Iterator[str]:
    """Run the server with an empty bucket in it; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    put = urllib.request.Request(f"{address}/{bucket}", method="PUT")
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def has_made_the_bucket() -> bool:
        assert process.poll() is None, f"moto's server ended with {process.returncode}"
        try:
            with urllib.request.urlopen(put, timeout=5):
                return True
        except ConnectionError:
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return False
            raise

    try:
        poll_until(has_made_the_bucket, timeout_s=60.0)
        yield address
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
