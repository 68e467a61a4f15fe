"""Checkpoints in an object store: S3 and what speaks its protocol, Google's, Azure's. obstore carries them; a put there is atomic.

Objects are put without conditions: numbers of checkpoints are never used twice, and a conditional put cannot be cut into parts.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from ps_proto.errors import InvalidRequest, StorageFailed
from ps_server.storage.store import Data, NotThere, Store, buffers_of

PART_BYTES = 8 << 20  # of an object that is put in parts: 10,000 of these, which is the most that S3 takes, are 80 GB

_REQUEST_TIMEOUT = "10 minutes"
_RETRIES = 10
_RETRY_S = 180.0
_CLIENT_OPTIONS = {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_ca_certificate", "proxy_url", "timeout"}
_REASON_CHARS = 300


class Objects(Store):
    """The store at a URL such as s3://bucket/prefix.

    `options` are obstore's, by name: the store's own ("aws_endpoint_url") and some of its HTTP client ("allow_http": "true"). What they
    leave open is taken from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION, AWS_ALLOW_HTTP, …). `retry_s`: for how long a
    request is made again that met a store which does not answer, or is too busy.
    """

    def __init__(self, url: str, options: Mapping[str, str], retry_s: float = _RETRY_S) -> None:
        self.url = url.rstrip("/")
        # obstore replaces the environment's options of the client by those that it is given, so that one is handed on.
        client: Any = {"timeout": _REQUEST_TIMEOUT, "allow_http": os.environ.get("AWS_ALLOW_HTTP", "false")}
        client |= {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
        config: Any = {
            name: value for name, value in options.items() if name not in _CLIENT_OPTIONS
        }  # Any: the types list what each store knows
        try:
            self._store = from_url(
                self.url,
                config=config,
                client_options=client,
                retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=retry_s)},
            )
        except (BaseError, ValueError, TypeError) as error:
            raise InvalidRequest(
                f"the store {self.url}", _reason_of(error), "a URL that obstore opens, with options that it knows for it"
            ) from None

    def put(self, path: str, data: Data) -> None:
        buffers = buffers_of(data)
        is_small = sum([len(buffer) for buffer in buffers]) <= PART_BYTES
        with self._named(path):  # joined where small: a list is always put in parts, which takes three requests
            obstore.put(self._store, path, b"".join(buffers) if is_small else buffers, chunk_size=PART_BYTES)

    def get(self, path: str) -> memoryview:
        with self._named(path):
            try:
                return memoryview(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                raise NotThere(f"{self.url}/{path}") from None

    def list(self, prefix: str) -> dict[str, int]:
        with self._named(prefix):
            return {found["path"]: found["size"] for found in obstore.list(self._store, prefix or None, chunk_size=1_000).collect()}

    def delete(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        with self._named(paths[0]):
            try:
                obstore.delete(self._store, list(paths))
            except FileNotFoundError:  # some stores say so, and may have stopped there
                for path in paths:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._store, path)

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise StorageFailed(f"{self.url}/{path}", _reason_of(error)) from None


def _reason_of(error: Exception) -> str:
    """Return what an error of obstore says, without the structure of its insides that it prints below."""
    return (str(error).strip() or repr(error)).splitlines()[0][:_REASON_CHARS]
