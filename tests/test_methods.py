import pytest

from ps_proto import coordinator_pb2, parameter_server_pb2
from ps_proto.errors import InvalidRequest
from ps_proto.methods import METHODS, Method, Reader, to_bytes
from ps_proto.requests import Done, Pull
from samples import REPLIES, REQUESTS, same

SERVICES = [parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServer"], coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]]


def test_every_rpc_of_the_contract_is_a_method_and_no_other() -> None:
    assert {method.path for method in METHODS.values()} == {
        f"/{rpc.containing_service.full_name}/{rpc.name}" for service in SERVICES for rpc in service.methods
    }


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_streams_where_the_contract_does(method: Method) -> None:
    (service,) = (service for service in SERVICES if service.full_name == method.service)
    rpc = service.methods_by_name[method.name]
    assert (rpc.client_streaming, rpc.server_streaming) == (method.streams_request, method.streams_reply)
    for kind, streams, message in (
        (method.request, rpc.client_streaming, rpc.input_type),
        (method.reply, rpc.server_streaming, rpc.output_type),
    ):
        assert message.name == kind.__name__ or streams


def test_the_samples_show_every_request_and_reply() -> None:
    assert {type(value) for value in REQUESTS} == set(METHODS)
    assert {type(value) for value in REPLIES} == {method.reply for method in METHODS.values()}


@pytest.mark.parametrize("part_size_bytes", [1, 1 << 20])
@pytest.mark.parametrize("value", REQUESTS + REPLIES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_from_its_messages(value: object, part_size_bytes: int) -> None:
    reader = Reader(type(value), "server-0", 1 << 20)
    for data in to_bytes(value, part_size_bytes):
        reader.take(data)
    assert same(reader.value(), value)


def test_a_whole_value_is_one_message() -> None:
    reader = Reader(Done, "server-0", 1 << 20)
    with pytest.raises(InvalidRequest, match="no message"):
        reader.value()
    reader.take(b"")
    with pytest.raises(InvalidRequest, match="several messages"):
        reader.take(b"")
    assert reader.value() == Done(0)


@pytest.mark.parametrize("kind", [Done, Pull])
def test_bytes_that_are_no_message_are_refused(kind: type) -> None:
    with pytest.raises(InvalidRequest):
        Reader(kind, "server-0", 1 << 20).take(b"\xff" * 9)
