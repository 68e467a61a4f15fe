import pytest

from ps_proto.errors import InvalidRequest
from ps_worker.transport.choice import AUTO, LANES, TRANSPORTS, VARIABLE, find_transport


def test_the_argument_counts_before_the_variable() -> None:
    assert find_transport("tcp", {VARIABLE: "unix"}) == "tcp"
    assert find_transport(None, {VARIABLE: "unix"}) == "unix"
    assert find_transport(None, {VARIABLE: ""}) == AUTO
    assert find_transport(None, {}) == AUTO


@pytest.mark.parametrize("name", TRANSPORTS)
def test_every_transport_may_be_chosen(name: str) -> None:
    assert find_transport(name, {}) == name
    assert find_transport(None, {VARIABLE: name}) == name


def test_lanes_are_transports_the_best_first() -> None:
    assert (AUTO, *LANES, "grpc") == TRANSPORTS


@pytest.mark.parametrize("given", ["", "TCP", "pigeon", 5, True, ["tcp"]])
def test_what_is_no_transport_is_refused(given: object) -> None:
    with pytest.raises(InvalidRequest, match="one of auto, arena, unix, tcp, grpc") as caught:
        find_transport(given, {VARIABLE: "tcp"})
    assert caught.value.field == "transport"


def test_a_wrong_variable_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_transport(None, {VARIABLE: "pigeon"})
    assert (caught.value.field, caught.value.got) == (VARIABLE, "'pigeon'")
