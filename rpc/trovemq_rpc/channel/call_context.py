"""The caller's side of a call: grpc.aio's `RpcContext` and `Call`, and the futures that wait for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trovemq_rpc.channel.call_channel import CallChannel
from trovemq_rpc.channel.endpoint import ChannelEndpoint
from trovemq_rpc.channel.response import ResponseInfo
from trovemq_rpc.errors import AioRpcError, make_error, public_code
from trovemq_rpc.http2.headers import Fields
from trovemq_rpc.stream_intake import StreamIntake
from trovemq_rpc.wire.metadata import Metadata
from trovemq_rpc.wire.status import StatusCode


class CallContext(StreamIntake):
    """Attributes that few calls need belong to the class until they are set: so a call is made quickly."""

    channel: CallChannel
    endpoint: ChannelEndpoint

    over = False
    sent = False
    deadline: float | None = None
    _locally_cancelled = False
    _status: StatusCode | None = None
    _details = ""
    _info: ResponseInfo | None = None
    _trailers: Fields | None = None
    _waiters: list[asyncio.Future[None]] | None = None
    _head_waiters: list[asyncio.Future[None]] | None = None
    _done_callbacks: list[Callable[[Any], None]] | None = None

    def finish(self, code: StatusCode, details: str = "") -> None:
        """The call has its status; a stream that is still open is reset."""
        raise NotImplementedError

    # --- waiting ----------------------------------------------------------------------------------------
    def _wake_heads(self) -> None:
        waiters, self._head_waiters = self._head_waiters or [], None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters or [], None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_over(self) -> None:
        while not self.over:
            await self._wait_step()

    def _wait_step(self) -> asyncio.Future[None]:
        """Done at the call's next step: when it is sent, and when it is over."""
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        return waiter

    def _error(self) -> AioRpcError:
        assert self._status is not None
        initial = self._info.metadata if self._info is not None else Metadata()
        return make_error(self._status, initial, self._trailing(), self._details, self._debug())

    def _raise(self) -> None:
        """Raises a status other than OK for the caller."""
        if self._locally_cancelled:
            raise asyncio.CancelledError
        if self._status is not StatusCode.OK:
            raise self._error()

    # --- RpcContext and Call of grpc.aio ----------------------------------------------------------------
    def cancel(self) -> bool:
        if self.over:
            return False
        self._locally_cancelled = True
        self.finish(StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._status is StatusCode.CANCELLED

    def done(self) -> bool:
        return self.over

    def time_remaining(self) -> float | None:
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self.channel.loop.time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.over:
            callback(self)
            return
        if self._done_callbacks is None:
            self._done_callbacks = []
        self._done_callbacks.append(callback)

    async def initial_metadata(self) -> Metadata:
        while self._info is None and not self.over:
            waiter = self.channel.loop.create_future()
            if self._head_waiters is None:
                self._head_waiters = []
            self._head_waiters.append(waiter)
            await waiter
        return self._info.metadata if self._info is not None else Metadata()

    async def trailing_metadata(self) -> Metadata:
        await self._wait_over()
        return self._trailing()

    def _trailing(self) -> Metadata:
        from trovemq_rpc.wire.metadata import decode_metadata

        return Metadata(*decode_metadata(self._trailers or ()))

    async def code(self) -> Any:
        await self._wait_over()
        assert self._status is not None
        return public_code(self._status)

    async def details(self) -> str:
        await self._wait_over()
        return self._details

    async def debug_error_string(self) -> str:
        await self._wait_over()
        return self._debug()

    def _debug(self) -> str:
        assert self._status is not None
        peer = self.endpoint.peer() if self.sent else self.channel.target.text
        return f"{self._status.name} from {peer}: {self._details}"

    async def wait_for_connection(self) -> None:
        while not self.sent and not self.over:
            await self._wait_step()
        if self.over:
            self._raise()
