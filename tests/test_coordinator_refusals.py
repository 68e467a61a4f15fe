"""The coordinator's core: whatever arrives is answered or refused, and never a bug."""

import pytest

from driven import driven
from ps_proto.errors import InvalidRequest
from ps_proto.methods import COORDINATOR, METHODS
from ps_proto.requests import GetStats
from samples import FENCE, REQUESTS, type_name


@pytest.mark.parametrize("body", [body for body in REQUESTS if METHODS[type(body)].service == COORDINATOR], ids=type_name)
def test_no_request_of_the_contract_is_a_bug(body: object) -> None:
    driver = driven()
    driver.ask(body)
    driver.settle()


def test_a_request_that_the_coordinator_does_not_serve_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match="the request is GetStats, which the coordinator does not serve"):
        driven().get(GetStats(FENCE))
