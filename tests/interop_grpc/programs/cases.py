"""The client's side: one coroutine a case, which raises AssertionError or an RPC's error where the peer
is wrong.

Left out are the cases that need a cloud, credentials, a caching proxy or a load balancer of gRPC's own tests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from tests.interop_grpc.programs import interop_pb2 as pb
from tests.interop_grpc.programs.methods import (
    METHODS,
    UNIMPLEMENTED_METHOD,
    UNIMPLEMENTED_SERVICE,
    Method,
    zeros,
)
from tests.interop_grpc.programs.service import ECHO_INITIAL, ECHO_TRAILING
from tests.interop_grpc.programs.transports import Transport

__all__ = ["CASES", "Peer"]

# The sizes and counts are those of gRPC's descriptions.
LARGE_REQUEST: Final = 271_828  # bytes of a payload
LARGE_RESPONSE: Final = 314_159  # the same
SOAK_ITERATIONS: Final = 100  # theirs are 10; more is a better test
PARALLEL_CALLS: Final = 1_000  # as theirs
SPECIAL_MESSAGE: Final = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


class Peer:
    """A channel to the server under test, and the transport's names."""

    def __init__(self, rpc: Transport, connect: Callable[[], Any]) -> None:
        self.rpc = rpc
        self.connect = connect
        self.channel = connect()

    def method(self, method: str | Method, channel: Any = None) -> Any:
        chosen = METHODS[method] if isinstance(method, str) else method
        return getattr(channel or self.channel, chosen.kind)(
            chosen.path,
            request_serializer=chosen.request.SerializeToString,
            response_deserializer=chosen.response.FromString,
        )

    async def expect_status(self, call: Any, code: str, message: str | None = None) -> None:
        """Wait for the end of a call that must fail."""
        assert await call.code() == self.rpc.StatusCode[code], (await call.code(), await call.details())
        if message is not None:
            assert await call.details() == message, await call.details()


Case = Callable[[Peer], Awaitable[None]]
CASES: Final[dict[str, Case]] = {}


def _case(run: Case) -> Case:
    CASES[run.__name__] = run
    return run


def _outputs(*sizes: int, body: int | None = None) -> pb.StreamingOutputCallRequest:
    request = pb.StreamingOutputCallRequest(
        response_parameters=[pb.ResponseParameters(size=size) for size in sizes]
    )
    if body is not None:
        request.payload.CopyFrom(zeros(body))
    return request


def _large(**fields: Any) -> pb.SimpleRequest:
    return pb.SimpleRequest(response_size=LARGE_RESPONSE, payload=zeros(LARGE_REQUEST), **fields)


def _check_body(response: pb.SimpleResponse | pb.StreamingOutputCallResponse, size: int) -> None:
    assert response.payload.body == bytes(size), f"{len(response.payload.body)} bytes instead of {size} zeros"


async def _check_outputs(call: AsyncIterator[pb.StreamingOutputCallResponse], sizes: Sequence[int]) -> None:
    bodies = [response.payload.body async for response in call]
    assert bodies == [bytes(size) for size in sizes], [len(body) for body in bodies]


@_case
async def empty_unary(peer: Peer) -> None:
    response = await peer.method("empty_call")(pb.Empty())
    assert response == pb.Empty()


@_case
async def large_unary(peer: Peer) -> None:
    _check_body(await peer.method("unary_call")(_large()), LARGE_RESPONSE)


async def _compressed_unary(peer: Peer, *, probe: bool) -> None:
    call, gzip = peer.method("unary_call"), peer.rpc.Compression.Gzip
    if probe:
        refused = call(_large(expect_compressed=pb.BoolValue(value=True)))
        await peer.expect_status(refused, "INVALID_ARGUMENT")
    request = _large(expect_compressed=pb.BoolValue(value=True))
    _check_body(await call(request, compression=gzip), LARGE_RESPONSE)
    request = _large(expect_compressed=pb.BoolValue(value=False))
    _check_body(await call(request), LARGE_RESPONSE)


@_case
async def client_compressed_unary(peer: Peer) -> None:
    await _compressed_unary(peer, probe=True)


@_case
async def client_compressed_unary_noprobe(peer: Peer) -> None:
    await _compressed_unary(peer, probe=False)


@_case
async def server_compressed_unary(peer: Peer) -> None:
    for compressed in (True, False):
        call = peer.method("unary_call")(_large(response_compressed=pb.BoolValue(value=compressed)))
        _check_body(await call, LARGE_RESPONSE)
        _check_flag(call, compressed)


def _check_flag(call: Any, compressed: bool) -> None:
    """grpcio does not say how a message came; there this is not checked."""
    assert getattr(call, "message_compressed", compressed) == compressed, f"compressed: {not compressed}"


@_case
async def client_streaming(peer: Peer) -> None:
    call = peer.method("streaming_input_call")()
    for size in (27182, 8, 1828, 45904):
        await call.write(pb.StreamingInputCallRequest(payload=zeros(size)))
    await call.done_writing()
    assert (await call).aggregated_payload_size == 74922


async def _compressed_streaming(peer: Peer, *, probe: bool) -> None:
    method, gzip = peer.method("streaming_input_call"), peer.rpc.Compression.Gzip
    compressed = pb.StreamingInputCallRequest(
        expect_compressed=pb.BoolValue(value=True), payload=zeros(27182)
    )
    plain = pb.StreamingInputCallRequest(expect_compressed=pb.BoolValue(value=False), payload=zeros(45904))
    if probe:
        call = method()
        await call.write(compressed)
        await call.done_writing()
        await peer.expect_status(call, "INVALID_ARGUMENT")
    call = method(compression=gzip)
    await call.write(compressed)
    await call.write(plain, compress=False)
    await call.done_writing()
    assert (await call).aggregated_payload_size == 73086


@_case
async def client_compressed_streaming(peer: Peer) -> None:
    await _compressed_streaming(peer, probe=True)


@_case
async def client_compressed_streaming_noprobe(peer: Peer) -> None:
    await _compressed_streaming(peer, probe=False)


@_case
async def server_streaming(peer: Peer) -> None:
    sizes = (31415, 9, 2653, 58979)
    await _check_outputs(peer.method("streaming_output_call")(_outputs(*sizes)), sizes)


@_case
async def server_compressed_streaming(peer: Peer) -> None:
    request = _outputs(31415, 92653)
    request.response_parameters[0].compressed.value = True
    request.response_parameters[1].compressed.value = False
    call = peer.method("streaming_output_call")(request)
    for size, compressed in ((31415, True), (92653, False)):
        _check_body(await call.read(), size)
        _check_flag(call, compressed)
    assert await call.read() == peer.rpc.EOF
    await peer.expect_status(call, "OK")


@_case
async def ping_pong(peer: Peer) -> None:
    call = peer.method("full_duplex_call")()
    for sent, wanted in ((27182, 31415), (8, 9), (1828, 2653), (45904, 58979)):
        await call.write(_outputs(wanted, body=sent))
        _check_body(await call.read(), wanted)
    await call.done_writing()
    assert await call.read() == peer.rpc.EOF
    await peer.expect_status(call, "OK")


@_case
async def empty_stream(peer: Peer) -> None:
    call = peer.method("full_duplex_call")()
    await call.done_writing()
    assert await call.read() == peer.rpc.EOF
    await peer.expect_status(call, "OK")


async def _check_metadata(call: Any) -> None:
    assert (ECHO_INITIAL, "test_initial_metadata_value") in list(await call.initial_metadata())
    assert (ECHO_TRAILING, b"\xab\xab\xab") in list(await call.trailing_metadata())


@_case
async def custom_metadata(peer: Peer) -> None:
    metadata = ((ECHO_INITIAL, "test_initial_metadata_value"), (ECHO_TRAILING, b"\xab\xab\xab"))
    unary = peer.method("unary_call")(_large(), metadata=metadata)
    _check_body(await unary, LARGE_RESPONSE)
    await _check_metadata(unary)
    stream = peer.method("full_duplex_call")(metadata=metadata)
    await stream.write(_outputs(LARGE_RESPONSE, body=LARGE_REQUEST))
    await stream.done_writing()
    await _check_outputs(stream, [LARGE_RESPONSE])
    await _check_metadata(stream)


@_case
async def status_code_and_message(peer: Peer) -> None:
    status = pb.EchoStatus(code=2, message="test status message")
    unary = peer.method("unary_call")(pb.SimpleRequest(response_status=status))
    await peer.expect_status(unary, "UNKNOWN", status.message)
    stream = peer.method("full_duplex_call")()
    await stream.write(pb.StreamingOutputCallRequest(response_status=status))
    await stream.done_writing()
    await peer.expect_status(stream, "UNKNOWN", status.message)


@_case
async def special_status_message(peer: Peer) -> None:
    status = pb.EchoStatus(code=2, message=SPECIAL_MESSAGE)
    call = peer.method("unary_call")(pb.SimpleRequest(response_status=status))
    await peer.expect_status(call, "UNKNOWN", SPECIAL_MESSAGE)


@_case
async def unimplemented_method(peer: Peer) -> None:
    await peer.expect_status(peer.method(UNIMPLEMENTED_METHOD)(pb.Empty()), "UNIMPLEMENTED")


@_case
async def unimplemented_service(peer: Peer) -> None:
    await peer.expect_status(peer.method(UNIMPLEMENTED_SERVICE)(pb.Empty()), "UNIMPLEMENTED")


@_case
async def cancel_after_begin(peer: Peer) -> None:
    call = peer.method("streaming_input_call")()
    await asyncio.sleep(0)
    call.cancel()
    await peer.expect_status(call, "CANCELLED")


@_case
async def cancel_after_first_response(peer: Peer) -> None:
    call = peer.method("full_duplex_call")()
    await call.write(_outputs(31415, body=27182))
    _check_body(await call.read(), 31415)
    call.cancel()
    await peer.expect_status(call, "CANCELLED")


async def _one_request_without_end() -> AsyncIterator[pb.StreamingOutputCallRequest]:
    yield pb.StreamingOutputCallRequest(payload=zeros(27182))
    await asyncio.Event().wait()


@_case
async def timeout_on_sleeping_server(peer: Peer) -> None:
    call = peer.method("full_duplex_call")(_one_request_without_end(), timeout=0.001)
    await peer.expect_status(call, "DEADLINE_EXCEEDED")


@_case
async def rpc_soak(peer: Peer) -> None:
    for _ in range(SOAK_ITERATIONS):
        await large_unary(peer)


@_case
async def channel_soak(peer: Peer) -> None:
    for _ in range(SOAK_ITERATIONS):
        channel = peer.connect()
        _check_body(await peer.method("unary_call", channel)(_large()), LARGE_RESPONSE)
        await channel.close()


@_case
async def concurrent_large_unary(peer: Peer) -> None:
    await asyncio.gather(*(large_unary(peer) for _ in range(PARALLEL_CALLS)))
