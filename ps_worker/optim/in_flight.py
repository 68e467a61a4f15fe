"""A step whose push is on its way while the next one computes."""

from collections.abc import Mapping
from contextlib import suppress

from ps_proto.errors import InvalidRequest, ParameterServerError, PushPartlyTaken
from ps_proto.requests import Ids, Rows
from ps_worker.client import Client
from ps_worker.driver import Handle


def check_may_overlap(client: Client) -> None:
    """Raise InvalidRequest where the next step waits for this one's pushes in any case."""
    if client.has_synchronous_tables:
        want = "False in a job with synchronous tables: their next step waits for this one's pushes"
        raise InvalidRequest("overlap_pushes", "True", want)


class StepInFlight:
    """The push of a step and its end, queued; one step at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._handles: list[Handle[None]] = []
        self._is_held_up = False  # the last push was not acknowledged everywhere, and keeps its name

    def take_off(self, pushes: Mapping[str, tuple[Ids, Rows]]) -> None:
        """Queue the push and the end of the step at work; raises for what cannot be pushed, and then the step goes on."""
        check_may_overlap(self._client)
        self._handles = [self._client.push_async(pushes)] if pushes else []
        self._handles.append(self._client.end_step_async())

    def land(self) -> None:
        """Wait until the last step is pushed and ended; raise what its push ended in. After Unreachable or a timeout call it again."""
        if self._is_held_up:
            self._client.retry_push()
            self._is_held_up = False
        try:
            for handle in self._handles:
                handle.result()
        except (PushPartlyTaken, ConnectionError, TimeoutError):
            self._is_held_up = True
            with suppress(ParameterServerError):
                self._handles[-1].result()  # that the step could not end either is no news
            raise
        finally:
            self._handles = [handle for handle in self._handles if not handle.done()]  # after a Ctrl-C they are still waited for
