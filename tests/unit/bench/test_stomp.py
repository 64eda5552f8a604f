"""The STOMP client of the benchmark: frames as the specification writes them, receipts, browses, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bench.trees.stomp import Frame, StompClient, StompError, encode_frame, read_frame

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _read(data: bytes) -> Frame:
    async def read() -> Frame:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_frame(reader)

    return asyncio.run(read())


def test_a_frame_is_read_as_it_was_written() -> None:
    data = encode_frame("SEND", {"destination": "/queue/a", "content-length": "3"}, b"\0\n\0")
    frame = _read(b"\n\n" + data)
    assert frame == Frame("SEND", {"destination": "/queue/a", "content-length": "3"}, b"\0\n\0")


def test_escaped_headers_and_unsized_bodies_are_read_and_first_header_wins() -> None:
    frame = _read(b"MESSAGE\r\nmessage-id:ID\\c1\na:1\na:2\n\nbody\0")
    assert frame == Frame("MESSAGE", {"message-id": "ID:1", "a": "1"}, b"body")


@pytest.mark.parametrize("cut", [0, 3, 9, -1])
def test_a_stream_that_ends_within_a_frame_is_an_error(cut: int) -> None:
    data = encode_frame("RECEIPT", {"content-length": "2"}, b"ab")
    with pytest.raises(StompError):
        _read(data[:cut])


async def _with_server(serve: Serve, use: Callable[[StompClient], Awaitable[None]]) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await read_frame(reader)).command == "CONNECT"
        writer.write(encode_frame("CONNECTED", {"version": "1.2"}))
        await serve(reader, writer)
        await reader.read()  # until the client is gone
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        client = await StompClient.connect(server.sockets[0].getsockname()[1])
        try:
            await use(client)
        finally:
            await client.close()


def test_a_send_is_done_when_its_own_receipt_comes() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = [await read_frame(reader) for _ in range(2)]
        assert [frame.body for frame in frames] == [b"1", b"2"]
        writer.write(encode_frame("RECEIPT", {"receipt-id": frames[1].headers["receipt"]}))

    async def use(client: StompClient) -> None:
        first, second = client.send("q", b"1", {}), client.send("q", b"2", {"ownid": "x"})
        await second
        assert not first.done()

    asyncio.run(_with_server(serve, use))


def test_a_browse_ends_at_its_end_frame_and_an_error_ends_everything() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await read_frame(reader)).headers["id"]
        writer.write(encode_frame("MESSAGE", {"subscription": name, "message-id": "1"}, b"x"))
        writer.write(encode_frame("MESSAGE", {"subscription": name, "browser": "end"}))
        assert (await read_frame(reader)).command == "UNSUBSCRIBE"
        await read_frame(reader)
        writer.write(encode_frame("ERROR", {"message": "no"}))

    async def use(client: StompClient) -> None:
        found = await client.browse("q", "a = 'b'", 10.0)
        assert [frame.headers["message-id"] for frame in found] == ["1"]
        with pytest.raises(StompError, match="no"):
            await client.send("q", b"1", {})

    asyncio.run(_with_server(serve, use))
