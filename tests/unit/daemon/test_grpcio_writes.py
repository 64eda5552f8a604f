"""On grpcio the write of a reply fails a moment before the handler is cancelled, where the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tests.support import fake_loop
from tests.support.logs import logged
from trovemq_daemon import calls
from trovemq_daemon.calls import calls_of, for_coroutines
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics

pytestmark = pytest.mark.asyncio
METHOD = "/s/Fetch"


class Gone:
    """The context of a call whose client is gone, which grpcio does not know yet."""

    def __init__(self) -> None:
        self.aborted: list[grpc.StatusCode] = []

    def peer(self) -> str:
        return "a"

    def cancelled(self) -> bool:
        return False

    done = cancelled

    async def write(self, _reply: object) -> None:
        raise grpc.aio.InternalError('Failed "execute_batch"')

    async def abort(self, status: grpc.StatusCode, *_details: object) -> None:
        self.aborted.append(status)
        raise grpc.aio.AbortError


def guard() -> HandlerGuard:
    return HandlerGuard(RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="a"))


def stream_of_requests() -> Any:
    async def behaviour(_requests: object, context: Any) -> None:
        await context.write(b"a reply")

    return guard().streams(METHOD, grpc.stream_stream_rpc_method_handler(behaviour)).stream_stream


def stream_of_replies() -> Any:
    async def behaviour(_request: object, _context: Any) -> AsyncIterator[bytes]:
        yield b"a reply"

    handler = calls_of(grpc.unary_stream_rpc_method_handler(behaviour))
    return for_coroutines(guard().calls(METHOD, handler)).unary_stream


@pytest.mark.parametrize("served", [stream_of_requests, stream_of_replies])
async def test_each_client_that_left_was_logged_as_an_unexpected_error(served: Any) -> None:
    context = Gone()
    with logged() as lines:
        handling = asyncio.create_task(served()(b"", context))
        await fake_loop.turns(20)
        assert not handling.done(), "it waits for grpcio"
        handling.cancel()
        await asyncio.gather(handling, return_exceptions=True)
        await fake_loop.turns(20)
    assert (handling.cancelled(), lines.getvalue(), context.aborted) == (True, "", [])


@pytest.mark.parametrize("served", [stream_of_requests, stream_of_replies])
async def test_a_failed_write_to_a_client_that_is_there_is_logged(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CANCELLED_WITHIN_S", 0.0)
    context = Gone()
    with logged() as lines, pytest.raises(grpc.aio.AbortError):
        await served()(b"", context)
    assert lines.getvalue().count("rpc.unexpected_error") == 1
    assert context.aborted == [grpc.StatusCode.INTERNAL]
