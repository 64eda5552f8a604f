"""When responses leave: a stream's before other work of the loop, and from a callback; a call's with all that
its read causes."""

import asyncio
from typing import Any

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run
from trovemq_rpc.server.endpoint import ServerEndpoint
from trovemq_rpc.testing.loop import MemoryLoop


async def _served(loop: MemoryLoop, handler: Any) -> Any:
    server = rpc.server()
    handlers = {"Talk": rpc.stream_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.T", handlers),))
    await server.start()
    await loop.create_server(lambda: server.accept(None), *ADDRESS)
    return server


def note_writes(monkeypatch: Any, steps: list[str]) -> None:
    """Notes each write of a server's connection, from now on."""
    flush = ServerEndpoint.flush

    def noted(endpoint: ServerEndpoint) -> None:
        if endpoint.connection.output:
            steps.append("write")
        flush(endpoint)

    monkeypatch.setattr(ServerEndpoint, "flush", noted)


def test_work_of_the_next_turn_went_before_the_answer_of_a_stream(monkeypatch: Any) -> None:
    steps: list[str] = []

    async def talk(_requests: Any, context: Any) -> None:
        while (request := await context.read()) is not rpc.EOF:
            asyncio.get_running_loop().call_soon(steps.append, "work")
            await context.write(request)

    async def program(loop: MemoryLoop) -> None:
        server = await _served(loop, talk)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk")()
            await call.write(b"1")
            assert await call.read() == b"1"
            note_writes(monkeypatch, steps)
            steps.clear()
            await call.write(b"2")
            await call.write(b"3")
            assert [await call.read(), await call.read()] == [b"2", b"3"]
            await call.done_writing()
        await server.stop(None)

    run(program)
    assert steps[: steps.index("work") + 1] == ["write", "work"]
    assert steps.count("write") <= 3, "requests that were read together are answered in one write"


def test_try_send_does_nothing_where_the_client_does_not_read() -> None:
    sent: list[bool] = []

    async def talk(_requests: Any, context: Any) -> None:
        await context.read()
        sent.append(context.try_send(bytes(1 << 20)))
        sent.append(context.try_send(b"not sent"))
        await context.read()

    async def program(loop: MemoryLoop) -> None:
        server = await _served(loop, talk)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk")()
            await call.write(b"1")
            assert len(await call.read()) == 1 << 20
            await call.done_writing()
            assert await call.read() is rpc.EOF
        await server.stop(None)

    run(program)
    assert sent == [True, False]


def test_the_answer_to_a_ping_left_before_that_of_the_call_beside_it(monkeypatch: Any) -> None:
    steps: list[str] = []

    def answer(calls: list[rpc.ServerCall]) -> None:
        steps.append("answer")
        for call in calls:
            call.reply(b"done")

    async def program(loop: MemoryLoop) -> None:
        server = rpc.server()
        server.add_callback_handlers("t.T", {"Call": rpc.CallbackUnary(answer)})
        await server.start()
        await loop.create_server(lambda: server.accept(None), *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.unary_unary("/t.T/Call")
            assert await call(b"") == b"done"
            note_writes(monkeypatch, steps)
            steps.clear()
            (endpoint,) = channel.endpoints
            endpoint.connection.ping(b"whatever")  # it is written with the call
            assert await call(b"") == b"done"
        await server.stop(None)

    run(program)
    assert steps[:2] == ["answer", "write"]
