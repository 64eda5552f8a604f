"""Requests of a stream that are handled in the callback that received them, and reading that pauses."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run
from trovemq_rpc.intake import WINDOW_GROWN_MAX
from trovemq_rpc.testing.loop import MemoryLoop

MESSAGE_SIZE = 100_000


async def _served(loop: MemoryLoop, handler: Any) -> Any:
    server = rpc.server()
    handlers = {"Talk": rpc.stream_stream_rpc_method_handler(handler, request_deserializer=bytes.decode)}
    server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.T", handlers),))
    await server.start()
    await loop.create_server(lambda: server.accept(None), *ADDRESS)
    return server


async def _talked(loop: MemoryLoop, handler: Any, messages: list[str]) -> list[bytes]:
    """The answers to these messages."""
    server, answers = await _served(loop, handler), list[bytes]()
    async with rpc.insecure_channel(TARGET) as channel:
        call = channel.stream_stream("/t.T/Talk")()

        async def write() -> None:
            for message in messages:
                await call.write(message.encode())
            await call.done_writing()

        writing = asyncio.create_task(write())
        while (answer := await call.read()) is not rpc.EOF:
            answers.append(answer)
        await writing
    await server.stop(None)
    return answers


async def _asked(loop: MemoryLoop, handler: Any, messages: list[bytes]) -> list[bytes]:
    """The same one at a time: each is sent after the answer to the one before."""
    server, answers = await _served(loop, handler), list[bytes]()
    async with rpc.insecure_channel(TARGET) as channel:
        call = channel.stream_stream("/t.T/Talk")()
        for message in messages:
            await call.write(message)
            answers.append(await call.read())
        await call.done_writing()
    await server.stop(None)
    return answers


@given(modes=st.lists(st.sampled_from(["takes", "pauses"]), max_size=30), seed=st.integers(0, 1000))
def test_every_request_comes_once_and_in_order(modes: list[str], seed: int) -> None:
    """Whether the receiver takes it, or leaves it to the coroutine, which works for a while."""
    messages = [f"{number} {mode}" for number, mode in enumerate(modes)]
    found: list[str] = []

    async def talk(_requests: Any, context: Any) -> None:
        def take(message: str) -> bool:
            if message.endswith("pauses"):
                return False
            found.append(message)
            return True

        context.set_receiver(take)
        while (request := await context.read()) is not rpc.EOF:
            await asyncio.sleep(0.01)
            found.append(request)
            await context.write(request.encode())

    answers = run(lambda loop: _talked(loop, talk, messages), seed)
    assert found == messages
    assert set(answers) >= {message.encode() for message in messages if message.endswith("pauses")}


def test_requests_that_the_receiver_takes_wake_no_task() -> None:
    reads: list[Any] = []

    async def talk(_requests: Any, context: Any) -> None:
        context.set_receiver(lambda message: context.try_send(message.encode()))
        while (request := await context.read()) is not rpc.EOF:
            reads.append(request)
            await context.write(b"first")

    assert run(lambda loop: _asked(loop, talk, [b"a", b"b", b"c"])) == [b"first", b"b", b"c"]
    assert reads == ["a"]


def test_while_the_coroutine_works_the_client_sends_one_window() -> None:
    unread: list[int] = []
    rest: list[str] = []

    async def talk(_requests: Any, context: Any) -> None:
        context.set_receiver(lambda _message: False)
        rest.append(await context.read())
        await asyncio.sleep(10)
        unread.append(context.unread)
        while (request := await context.read()) is not rpc.EOF:
            rest.append(request)

    run(lambda loop: _talked(loop, talk, ["x" * MESSAGE_SIZE] * 100))
    assert 0 < unread[0] <= WINDOW_GROWN_MAX + 2 * MESSAGE_SIZE
    assert len(rest) == 100


def test_what_the_receiver_raises_is_raised_by_read() -> None:
    raised: list[str] = []

    async def talk(_requests: Any, context: Any) -> None:
        def take(message: str) -> bool:
            raise ValueError(message)

        context.set_receiver(take)
        await context.write((await context.read()).encode())
        try:
            await context.read()
        except ValueError as error:
            raised.append(str(error))
            raise

    async def program(loop: MemoryLoop) -> None:
        with pytest.raises(rpc.AioRpcError, match="ValueError"):
            await _asked(loop, talk, [b"first", b"second"])

    run(program)
    assert raised == ["second"]


def test_a_stream_that_is_over_keeps_no_receiver() -> None:
    class Owner:
        def take(self, message: str) -> bool:
            return self.context.try_send(message.encode()) is not None

        context: Any

    owners: list[weakref.ref[Owner]] = []

    async def talk(_requests: Any, context: Any) -> None:
        owner = Owner()
        owner.context = context
        context.set_receiver(owner.take)
        owners.append(weakref.ref(owner))
        while await context.read() is not rpc.EOF:
            pass
        del owner

    gc.disable()
    try:
        run(lambda loop: _talked(loop, talk, ["a"]))
        assert owners[0]() is None, "no cycle is left to the garbage collector"
    finally:
        gc.enable()


@given(
    steps=st.lists(st.sampled_from(["now", "write", "large", "turn"]), max_size=40), seed=st.integers(0, 100)
)
def test_messages_written_at_once_and_awaited_come_in_order(steps: list[str], seed: int) -> None:
    """write_now() takes what write() would send without waiting, and nothing while the window is closed."""
    found: list[str] = []

    async def talk(_requests: Any, context: Any) -> None:
        while (request := await context.read()) is not rpc.EOF:
            found.append(request)
            await asyncio.sleep(0.01)

    async def program(loop: MemoryLoop) -> list[str]:
        server, sent = await _served(loop, talk), list[str]()
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk")()
            assert not call.writable, "it is not sent yet"
            await call.wait_for_connection()
            for number, step in enumerate(steps):
                text = f"{number} " + "x" * (MESSAGE_SIZE if step == "large" else 10)
                if step == "turn":
                    await asyncio.sleep(0)
                    continue
                sent.append(text)
                if step == "write" or not call.writable:
                    await call.write(text.encode())
                else:
                    call.write_now(text.encode())
            await call.done_writing()
            assert not call.writable
            assert await call.read() is rpc.EOF
        await server.stop(None)
        return sent

    assert run(program, seed) == found


def test_a_message_written_at_once_needs_no_turn_of_the_loop() -> None:
    async def program(loop: MemoryLoop) -> None:
        server = await _served(loop, _silent)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk")()
            await call.wait_for_connection()
            await asyncio.sleep(1)
            call.write_now(b"x")
            assert not call.endpoint.connection.output, "the transport has it"
            call.cancel()
        await server.stop(None)

    run(program)


def test_a_call_whose_window_is_closed_is_not_writable() -> None:
    async def program(loop: MemoryLoop) -> None:
        server = await _served(loop, _silent)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk")()
            await call.wait_for_connection()
            written = 0
            while call.writable:
                call.write_now(bytes(MESSAGE_SIZE))
                written += MESSAGE_SIZE
                await asyncio.sleep(1)
            assert written < WINDOW_GROWN_MAX + 5 * MESSAGE_SIZE
            call.cancel()
            assert not call.writable
        await server.stop(None)

    run(program)


def test_a_deserializer_that_takes_views_gets_messages_without_a_copy() -> None:
    kinds: list[type] = []
    answers: list[type] = []

    def read(data: bytes | bytearray | memoryview) -> bytes:
        kinds.append(type(data))
        return bytes(data)

    def read_answer(data: bytes | bytearray | memoryview) -> bytes:
        answers.append(type(data))
        return bytes(data)

    read.takes_view = read_answer.takes_view = True  # type: ignore[attr-defined]

    async def talk(_requests: Any, context: Any) -> None:
        context.set_receiver(context.try_send)
        while (request := await context.read()) is not rpc.EOF:
            await context.write(request)

    async def program(loop: MemoryLoop) -> None:
        server = rpc.server()
        handlers = {"Talk": rpc.stream_stream_rpc_method_handler(talk, request_deserializer=read)}
        server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.T", handlers),))
        await server.start()
        await loop.create_server(lambda: server.accept(None), *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk", response_deserializer=read_answer)()
            for message in (b"first", b"small", bytes(MESSAGE_SIZE)):
                await call.write(message)
                assert await call.read() == message
            await call.done_writing()
        await server.stop(None)

    run(program)
    assert kinds == [bytes, memoryview, bytearray], "the first one waited for the coroutine to read"
    assert answers == [bytes, bytes, bytearray], "a small one waits as a copy, apart from the receive buffer"


def test_calls_with_equal_headers_share_a_note_on_one_connection_alone() -> None:
    heads: list[Any] = []

    async def keep(_request: bytes, context: Any) -> bytes:
        assert context.head.note in {None, context.peer()}
        context.head.note = context.peer()
        heads.append(context.head)
        return b""

    async def program(loop: MemoryLoop) -> None:
        server = rpc.server()
        handlers = {"Keep": rpc.unary_unary_rpc_method_handler(keep)}
        server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.T", handlers),))
        await server.start()
        await loop.create_server(lambda: server.accept(None), *ADDRESS)
        for _ in range(2):
            async with rpc.insecure_channel(TARGET) as channel:
                for value in ("1", "1", "1", "2"):
                    await channel.unary_unary("/t.T/Keep")(b"", metadata=(("key", value),))
        await server.stop(None)

    run(program)
    first, second = heads[:4], heads[4:]
    for one, two, three, other in (first, second):
        assert two is three
        assert other not in {one, two}
    assert not {*map(id, first)} & {*map(id, second)}


async def _silent(_requests: Any, context: Any) -> None:
    """Reads nothing."""
    context.set_receiver(lambda _message: False)
    await asyncio.sleep(100)
