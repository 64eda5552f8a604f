"""Calls between our channel and our server, on loopback."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.rpc_ends import SERVICE, ends, until

pytestmark = pytest.mark.asyncio


async def test_a_unary_call_is_answered_with_its_metadata_and_deadline() -> None:
    async with ends() as both:
        metadata = (("key", "value"), ("raw-bin", b"\0\1\xff"))
        assert await both.unary("Echo")(b"hello", timeout=10, metadata=metadata) == b"hello"
        assert set(metadata) <= set(both.handlers.metadata)
        assert 9 < (both.handlers.seen_deadline or 0) <= 10


async def test_streams_of_all_kinds_keep_order_and_end() -> None:
    async with ends() as both:
        call = both.channel.unary_stream(f"/{SERVICE}/Count")(b"100")
        assert [int(message) async for message in call] == list(range(100))
        assert (await call.initial_metadata())["begin"] == "now"
        assert (await call.trailing_metadata())["end"] == "there"
        joined = both.channel.stream_unary(f"/{SERVICE}/Join")(iter([b"a", b"b", b"c"]))
        assert await joined == b"a,b,c"
        stream = both.stream("Both")()
        for size in (0, 1, 70_000, 3_000_000):
            await stream.write(bytes(size))
            assert len(await stream.read()) == size
        await stream.done_writing()
        assert await stream.read() is rpc.EOF
        assert await stream.code() == rpc.StatusCode.OK
        stream = both.stream("ReadWrite")()
        await stream.write(b"abc")
        assert await stream.read() == b"ABC"


async def test_a_status_comes_with_details_and_metadata() -> None:
    async with ends() as both:
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Fail")("nö, 100 % \n".encode())
        assert failed.value.code() == rpc.StatusCode.NOT_FOUND
        assert failed.value.details() == "nö, 100 % \n"
        assert failed.value.trailing_metadata()["raw-bin"] == b"\0\xff"
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Raise")(b"")
        assert failed.value.code() == rpc.StatusCode.UNKNOWN
        assert "planted" in (failed.value.details() or "")
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Missing")(b"")
        assert failed.value.code() == rpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_ends_the_call_at_both_ends() -> None:
    async with ends() as both:
        both.handlers.cancelled = asyncio.get_running_loop().create_future()
        for timeout in (0.02, 0.2, 2.0, 20.0):  # on a busy machine one may be over before the handler begins
            with pytest.raises(rpc.AioRpcError) as failed:
                await both.unary("Hang")(b"", timeout=timeout)
            assert failed.value.code() == rpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: both.server.metrics.calls_active == 0)
            if both.handlers.cancelled.done():
                break
        assert both.handlers.cancelled.done()
        assert not both.server.metrics.calls_active


async def test_cancelling_a_call_cancels_its_handler() -> None:
    async with ends() as both:
        both.handlers.cancelled = asyncio.get_running_loop().create_future()
        call = both.unary("Hang")(b"")
        await until(lambda: both.server.metrics.calls_active == 1)
        assert call.cancel()
        await both.handlers.cancelled
        assert await call.code() == rpc.StatusCode.CANCELLED
        with pytest.raises(asyncio.CancelledError):
            await call
        waiting = asyncio.ensure_future(_await(both.unary("Hang")(b"")))
        await until(lambda: both.server.metrics.calls_active == 1)
        waiting.cancel()
        await until(lambda: both.server.metrics.calls_active == 0)
        assert await both.unary("Echo")(b"still here") == b"still here"


async def _await(call: Any) -> Any:
    return await call


async def test_too_large_messages_end_their_call_only() -> None:
    async with ends(options=[("grpc.max_receive_message_length", 1_000)]) as both:
        for body in (bytes(1_001), bytes(100_000)):
            with pytest.raises(rpc.AioRpcError) as failed:
                await both.unary("Echo")(body)
            assert failed.value.code() == rpc.StatusCode.RESOURCE_EXHAUSTED
        assert await both.unary("Echo")(bytes(1_000)) == bytes(1_000)


async def test_large_messages_pass_both_ways_and_give_their_budget_back() -> None:
    size = [("grpc.max_receive_message_length", 64 << 20)]
    async with ends(options=size, channel_options=size) as both:
        body = bytes(range(256)) * (20 << 12)
        answers = await asyncio.gather(*(both.unary("Echo")(body) for _ in range(3)))
        assert all(answer == body for answer in answers)
        budgets = [both.server.endpoint_options.budget, both.channel.budget]
        assert [budget.held for budget in budgets if budget] == [0, 0]
        assert [budget.large_held for budget in budgets if budget] == [0, 0]


async def test_a_message_larger_than_the_free_budget_waits_for_it() -> None:
    budget = rpc.BytesBudget(total=24 << 20, connection_share=24 << 20)
    options = [("grpc.max_receive_message_length", 18 << 20), ("trovemq.budget", budget)]
    async with ends(options=options) as both:
        sizes = await asyncio.gather(*(both.unary("Size")(bytes(12 << 20)) for _ in range(4)))
        assert sizes == [b"%d" % (12 << 20)] * 4
        assert budget.refused > 0
        assert budget.held == 0


async def test_callbacks_get_the_calls_of_a_turn_together() -> None:
    batches: list[int] = []

    def on_calls(calls: list[rpc.ServerCall]) -> None:
        batches.append(len(calls))
        for call in calls:
            if call.message == b"fail":
                call.fail(rpc.StatusCode.INVALID_ARGUMENT, "no")
            elif call.message == b"raise":
                raise ValueError("planted")
            else:
                call.reply([b"<", bytes(call.message), b">"])

    async with ends(callbacks={"Call": rpc.CallbackUnary(on_calls)}) as both:
        call = both.unary("Call")
        assert await call(b"first") == b"<first>"
        answers = await asyncio.gather(*(call(b"%d" % number) for number in range(50)))
        assert answers == [b"<%d>" % number for number in range(50)]
        assert max(batches) > 10
        for request, code in ((b"fail", "INVALID_ARGUMENT"), (b"raise", "UNKNOWN")):
            with pytest.raises(rpc.AioRpcError) as failed:
                await call(request)
            assert failed.value.code().name == code
        outcomes = await asyncio.gather(call(b"x"), call(b"raise"), return_exceptions=True)
        assert outcomes[0] == b"<x>"
        assert isinstance(outcomes[1], rpc.AioRpcError)


@pytest.mark.parametrize("passes", [False, True])
async def test_a_serializer_may_pass_bytes(passes: bool) -> None:
    def serialize(response: Any) -> bytes:
        return b"serialised %s" % response

    vars(serialize)["passes_bytes"] = passes

    def on_calls(calls: list[rpc.ServerCall]) -> None:
        for call in calls:
            call.reply(bytes(call.message))

    async with ends(callbacks={"Call": rpc.CallbackUnary(on_calls, serialize)}) as both:
        assert await both.unary("Call")(b"it") == (b"it" if passes else b"serialised it")


async def test_a_callback_leaves_calls_that_wait_to_a_coroutine() -> None:
    async def slowly(request: bytes, _context: Any) -> bytes:
        await asyncio.sleep(0)
        return b"slow " + request

    def on_calls(calls: list[rpc.ServerCall]) -> None:
        for call in calls:
            if call.message == b"now":
                call.reply(b"at once")
            else:
                call.in_task()

    handler = rpc.unary_unary_rpc_method_handler(slowly)
    async with ends(callbacks={"Call": rpc.CallbackUnary(on_calls, coroutine=handler)}) as both:
        call = both.unary("Call")
        answers = await asyncio.gather(*(call(request) for request in (b"now", b"later", b"now")))
        assert answers == [b"at once", b"slow later", b"at once"]


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0, 5), (4_096,), (16_379, 16_385, 1), (300_000, 7)])
async def test_a_callback_answers_with_a_whole_stream(sizes: tuple[int, ...]) -> None:
    """In one frame, in several, and beyond the client's window."""
    replies = [bytes([number]) * size for number, size in enumerate(sizes)]

    def on_calls(calls: list[rpc.ServerCall]) -> None:
        for call in calls:
            call.reply_all(replies)
            call.reply_all([b"too late"])

    async with ends(callbacks={"Call": rpc.CallbackUnary(on_calls)}) as both:
        call = both.channel.unary_stream(f"/{SERVICE}/Call")
        for _ in range(3):
            assert [one async for one in call(b"")] == replies


async def test_a_kept_message_outlives_the_receive_buffer() -> None:
    kept: list[tuple[Any, bytes]] = []

    def on_calls(calls: list[rpc.ServerCall]) -> None:
        for call in calls:
            kept.append((call.message, call.keep()))
            call.reply(b"")

    async with ends(callbacks={"Keep": rpc.CallbackUnary(on_calls)}) as both:
        both.server.parts.receive_buffer.poison = True
        bodies = [bytes([number]) * 9_000 for number in range(200)]
        for body in bodies:
            await both.unary("Keep")(body)
        assert [bytes(view) for view, _ in kept] == bodies
        assert [lasting for _, lasting in kept] == bodies
        assert both.server.parts.receive_buffer.replaced > 0


async def test_compressed_messages_are_bounded() -> None:
    async with ends(
        compression=rpc.Compression.Gzip, options=[("grpc.max_receive_message_length", 100_000)]
    ) as both:
        body = b"again and " * 1_000
        echo = both.unary("Echo")
        assert await echo(body, compression=rpc.Compression.Gzip) == body
        with pytest.raises(rpc.AioRpcError) as failed:
            await echo(bytes(10 << 20), compression=rpc.Compression.Gzip)
        assert failed.value.code() == rpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_compression_that_is_switched_off_is_refused() -> None:
    async with ends(options=[("grpc.compression_enabled_algorithms_bitset", 0b011)]) as both:
        echo = both.unary("Echo")
        body = b"again and " * 1_000
        assert await echo(body, compression=rpc.Compression.Deflate) == body
        with pytest.raises(rpc.AioRpcError) as failed:
            await echo(body, compression=rpc.Compression.Gzip)
        assert failed.value.code() == rpc.StatusCode.UNIMPLEMENTED


async def test_calls_above_the_servers_limit_are_refused() -> None:
    async with ends(maximum_concurrent_rpcs=1) as both:
        hanging = both.unary("Hang")(b"")
        await until(lambda: both.server.metrics.calls_active == 1)
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Echo")(b"")
        assert failed.value.code() == rpc.StatusCode.RESOURCE_EXHAUSTED
        hanging.cancel()


async def test_more_calls_than_streams_wait_for_their_turn() -> None:
    async with ends(options=[("grpc.max_concurrent_streams", 5)]) as both:
        answers = await asyncio.gather(*(both.unary("Echo")(b"%d" % n) for n in range(200)))
        assert answers == [b"%d" % n for n in range(200)]
        assert both.server.metrics.connections_opened == 1


async def test_a_handler_that_is_no_coroutine_runs_in_a_thread() -> None:
    def plain(request: bytes, _context: Any) -> bytes:
        return request[::-1]

    def prepare(server: rpc.Server) -> None:
        handler = rpc.unary_unary_rpc_method_handler(plain)
        generic = rpc.method_handlers_generic_handler("old.Style", {"Reverse": handler})
        server.add_generic_rpc_handlers((generic,))

    async with ends(prepare=prepare) as both:
        assert await both.channel.unary_unary("/old.Style/Reverse")(b"abc") == b"cba"


async def test_many_half_received_messages_do_not_lock_each_other_out() -> None:
    """Each exceeds its stream's window; together they exceed the connection's share of the budget."""
    budget = rpc.BytesBudget(total=16 << 20, connection_share=4 << 20)
    async with ends(options=[("trovemq.budget", budget)]) as both:
        size = both.unary("Size")
        assert set(await asyncio.gather(*(size(bytes(271_828)) for _ in range(300)))) == {b"271828"}
        assert budget.refused > 0
        assert (budget.held, budget.admissions) == (0, 0)


async def test_a_call_leaves_nothing_to_the_garbage_collector() -> None:
    async with ends() as both:
        echo = both.unary("Echo")
        for _ in range(10):
            await echo(b"warm", timeout=5)
        gc.collect()
        gc.disable()
        collected = []
        try:
            for _ in range(3):  # objects of other tests may be among those of one round
                for _ in range(1_000):
                    await echo(b"x", timeout=5)
                collected.append(gc.collect())
            assert min(collected) < 1_000, "several objects a call"
        finally:
            gc.enable()


async def test_a_cancelled_call_leaves_nothing_to_the_garbage_collector() -> None:
    """Its task held the call, and the call its task, with all that the handler's frames hold."""
    seen: list[weakref.ref[asyncio.Event]] = []

    async def hang(_request: bytes, _context: Any) -> bytes:
        large = asyncio.Event()
        seen.append(weakref.ref(large))
        await large.wait()
        return b""

    def prepare(server: rpc.Server) -> None:
        server.add_registered_method_handlers("a.A", {"Hang": rpc.unary_unary_rpc_method_handler(hang)})

    async with ends(prepare=prepare) as both:
        gc.collect()
        gc.disable()
        try:
            call = both.channel.unary_unary("/a.A/Hang")(b"")
            await until(lambda: bool(seen))
            call.cancel()
            await until(lambda: seen[0]() is None)
        finally:
            gc.enable()
