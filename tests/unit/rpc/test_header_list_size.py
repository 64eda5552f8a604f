"""A peer's SETTINGS_MAX_HEADER_LIST_SIZE: a larger list is not sent, and the call says why."""

from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.rpc_ends import Ends, ends
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.headers import LIST_SIZE_OF_A_BYTE_MAX, list_size
from trovemq_rpc.http2.hpack_tables import STATIC_TABLE

pytestmark = pytest.mark.asyncio

LIMIT = 1_000
SMALL = [("grpc.max_metadata_size", LIMIT)]
LARGE_VALUE = "v" * LIMIT
LARGE = (("large", LARGE_VALUE),)


async def _headers(_request: bytes, context: Any) -> bytes:
    await context.send_initial_metadata(LARGE)
    return b"answered"


async def _reply(request: bytes, context: Any) -> bytes:
    context.set_trailing_metadata(LARGE)
    return request


async def _abort(_request: bytes, context: Any) -> bytes:
    await context.abort(rpc.StatusCode.NOT_FOUND, "n" * LIMIT, LARGE)
    return b""


async def _stream(_request: bytes, context: Any) -> Any:
    yield b"one"
    context.set_trailing_metadata(LARGE)


METHODS = {
    "Headers": rpc.unary_unary_rpc_method_handler(_headers),
    "Reply": rpc.unary_unary_rpc_method_handler(_reply),
    "Abort": rpc.unary_unary_rpc_method_handler(_abort),
    "Stream": rpc.unary_stream_rpc_method_handler(_stream),
}


def large_answers() -> Any:
    """A client with a small limit, and handlers that answer with more."""

    def prepare(server: rpc.Server) -> None:
        server.add_registered_method_handlers("large.Large", METHODS)

    return ends(channel_options=SMALL, prepare=prepare)


async def failure(call: Any) -> tuple[Any, str]:
    with pytest.raises(rpc.AioRpcError) as caught:
        await call
    assert not list(caught.value.trailing_metadata())
    return caught.value.code(), caught.value.details() or ""


async def others_are_served(both: Ends) -> None:
    assert bytes(await both.unary("Echo")(b"x", metadata=(("small", "v"),), timeout=5)) == b"x"


@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_request_with_more_metadata_than_the_server_takes_is_not_sent(kind: str) -> None:
    async with ends(options=SMALL) as both:
        await others_are_served(both)
        before = both.server.metrics.calls_started
        if kind == "unary":
            code, details = await failure(both.unary("Echo")(b"x", metadata=LARGE, timeout=5))
        else:
            code, details = await failure(both.stream("Both")(metadata=LARGE, timeout=5).read())
        assert code == rpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"at most {LIMIT}" in details
        await others_are_served(both)
        assert both.server.metrics.calls_started == before + 1


async def test_a_request_of_exactly_what_the_server_takes_is_sent() -> None:
    async with ends(options=SMALL) as both:
        await others_are_served(both)
        echo = both.unary("Echo")
        space = LIMIT - echo._method.list_size - len("fits") - 32
        assert bytes(await echo(b"x", metadata=(("fits", "v" * space),))) == b"x"
        code, _ = await failure(echo(b"x", metadata=(("fits", "v" * (space + 1)),)))
        assert code == rpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["Headers", "Reply"])
async def test_an_answer_with_more_metadata_than_the_client_takes_fails(method: str) -> None:
    async with large_answers() as both:
        code, details = await failure(both.channel.unary_unary(f"/large.Large/{method}")(b"x", timeout=5))
        assert code == rpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"at most {LIMIT}" in details
        await others_are_served(both)
        assert both.server.metrics.calls_ended["RESOURCE_EXHAUSTED"] == 1


async def test_a_status_beyond_what_the_client_takes_comes_with_a_short_text() -> None:
    async with large_answers() as both:
        code, details = await failure(both.channel.unary_unary("/large.Large/Abort")(b"x", timeout=5))
        assert code == rpc.StatusCode.NOT_FOUND
        assert details == "n" * 128
        await others_are_served(both)


async def test_trailers_beyond_what_the_client_takes_fail_a_stream() -> None:
    async with large_answers() as both:
        call = both.channel.unary_stream("/large.Large/Stream")(b"x", timeout=5)
        assert await call.code() == rpc.StatusCode.RESOURCE_EXHAUSTED
        code, details = await failure(call.read())
        assert code == rpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"at most {LIMIT}" in details
        await others_are_served(both)


async def test_no_byte_of_a_block_stands_for_more_of_its_list() -> None:
    for field in STATIC_TABLE[1:]:
        for sent in (field, (field[0], b""), (field[0], b"v" * 40)):
            assert list_size([sent]) <= LIST_SIZE_OF_A_BYTE_MAX * len(Connection.encode([sent]))
