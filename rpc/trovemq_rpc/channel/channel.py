"""`insecure_channel()` and `secure_channel()`: a channel with grpc.aio's names.

It has one subchannel, which takes the first address that answers (pick_first), or one an address
(round_robin). The best state among them is the channel's: READY, CONNECTING, IDLE, TRANSIENT_FAILURE. A call
that finds no usable connection waits for one. It fails when all subchannels have failed, unless it was made
with `wait_for_ready`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.channel.call import Call
from trovemq_rpc.channel.client_method import ClientMethod
from trovemq_rpc.channel.connectivity import ChannelConnectivity as State
from trovemq_rpc.channel.endpoint import ChannelEndpoint
from trovemq_rpc.channel.kinds import StreamStreamCall, StreamUnaryCall, UnaryStreamCall, UnaryUnaryCall
from trovemq_rpc.channel.multi_callables import (
    StreamStreamMultiCallable,
    StreamUnaryMultiCallable,
    UnaryStreamMultiCallable,
    UnaryUnaryMultiCallable,
)
from trovemq_rpc.channel.subchannel import Subchannel
from trovemq_rpc.channel.target import Address, Target
from trovemq_rpc.credentials import ChannelCredentials
from trovemq_rpc.errors import UsageError, register_as_grpcs
from trovemq_rpc.loop_parts import LoopParts, loop_parts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import ChannelArguments, options_of
from trovemq_rpc.refused_names import refuse_interceptors
from trovemq_rpc.wire.compression import Compression
from trovemq_rpc.wire.status import StatusCode

CLOSE_LOOK_S: Final = 0.02  # between two looks whether the last call is over: hardly later than it is
USER_AGENT: Final = "grpc-python-trovemq-rpc/0.1.0"

Serializer = Callable[[Any], bytes] | None
Deserializer = Callable[[bytes], Any] | None

log = logging.getLogger("trovemq_rpc")


class Channel:
    """Made by `insecure_channel` or `secure_channel`. The event loop is that of its first call."""

    def __init__(
        self,
        target: str,
        credentials: ChannelCredentials | None,
        options: ChannelArguments | None,
        compression: Any,
    ) -> None:
        self.target = Target(target)
        self.credentials = credentials
        self.options = options_of(options, server=False)
        assert self.options.budget is not None
        self.budget: BytesBudget = self.options.budget
        if compression is None and self.options.compression:
            compression = Compression(self.options.compression)
        self.compression = compression
        self.metrics = Metrics()
        self.authority = self.options.authority or self.options.server_name or self.target.authority
        self.server_name = self.options.server_name or self.target.host
        self.user_agent = f"{self.options.user_agent} {USER_AGENT}".strip()
        self.calls: set[Call] = set()
        self.endpoints: set[ChannelEndpoint] = set()
        self._waiting: deque[Call] = deque()
        self._subchannels: list[Subchannel] = []
        self._turn = 0
        self._closed = False
        self._state = State.IDLE
        self._state_waiters: set[asyncio.Future[None]] = set()
        self._parts: LoopParts | None = None
        self._resolving: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def parts(self) -> LoopParts:
        if self._parts is None:
            self._parts = loop_parts(asyncio.get_running_loop())
        return self._parts

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.parts.loop

    # --- methods of stubs -------------------------------------------------------------------------------
    def unary_unary(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> UnaryUnaryMultiCallable:
        return UnaryUnaryMultiCallable(
            self, ClientMethod(self, method, request_serializer, response_deserializer)
        )

    def unary_stream(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> UnaryStreamMultiCallable:
        return UnaryStreamMultiCallable(
            self, ClientMethod(self, method, request_serializer, response_deserializer)
        )

    def stream_unary(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> StreamUnaryMultiCallable:
        return StreamUnaryMultiCallable(
            self, ClientMethod(self, method, request_serializer, response_deserializer)
        )

    def stream_stream(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> StreamStreamMultiCallable:
        return StreamStreamMultiCallable(
            self, ClientMethod(self, method, request_serializer, response_deserializer)
        )

    # --- calls on their way -----------------------------------------------------------------------------
    def submit(self, call: Call) -> None:
        """Sends the call now, or when there is a connection for it."""
        if self._closed:
            raise UsageError("Channel is closed.")
        calls = self.calls
        if call not in calls:
            calls.add(call)
            self.metrics.calls_started += 1
        if call.over:
            calls.discard(call)
            return
        endpoint = self._pick() if not self._waiting else None
        if endpoint is not None:
            call.start(endpoint)
            return
        if not call.wait_for_ready and self._state is State.TRANSIENT_FAILURE:
            call.finish(StatusCode.UNAVAILABLE, self._last_error())
            return
        self._waiting.append(call)
        self._connect()

    def _pick(self) -> ChannelEndpoint | None:
        subchannels = self._subchannels
        if len(subchannels) == 1:
            endpoint = subchannels[0].endpoint
            if endpoint is not None and endpoint.can_open:
                return endpoint
            return subchannels[0].usable()
        for at in range(len(subchannels)):
            endpoint = subchannels[(self._turn + at) % len(subchannels)].usable()
            if endpoint is not None:
                self._turn = (self._turn + at + 1) % len(subchannels)
                return endpoint
        return None

    def send_waiting(self) -> None:
        """A connection has a free stream."""
        while self._waiting:
            call = self._waiting[0]
            if not call.over:
                endpoint = self._pick()
                if endpoint is None:
                    return
                self._waiting.popleft()
                call.start(endpoint)
            else:
                self._waiting.popleft()

    # --- connections ------------------------------------------------------------------------------------
    def _connect(self) -> None:
        if self._closed:
            return
        if not self._subchannels:
            if not self.options.round_robin:
                self._subchannels = [Subchannel(self, self.target.resolve)]
            elif self._resolving is None:
                self._resolving = self.loop.create_task(self._resolve())
        for subchannel in self._subchannels:
            subchannel.connect()

    async def _resolve(self) -> None:
        """Makes a subchannel for each address. Asks again while the name has none."""
        while not self._subchannels:
            try:
                addresses = await self.target.resolve()
            except OSError as error:
                addresses = []
                self._set_state(State.TRANSIENT_FAILURE)
                self.connect_failed(str(error))
                await asyncio.sleep(self.options.backoff_initial_s)
            self._subchannels = [Subchannel(self, _just(address)) for address in addresses]
        self._resolving = None
        self._connect()

    def connect_failed(self, error: str) -> None:
        """Ends the calls without `wait_for_ready`, if no subchannel may still connect."""
        if any(not subchannel.failing for subchannel in self._subchannels):
            return
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if call.over:
                continue
            if call.wait_for_ready:
                self._waiting.append(call)
            else:
                call.finish(
                    StatusCode.UNAVAILABLE, f"failed to connect to all addresses; last error: {error}"
                )

    def connection_gone(self, subchannel: Subchannel) -> None:
        if self._closed:
            return
        if self._waiting or self.options.round_robin:
            subchannel.connect()

    def _last_error(self) -> str:
        error = next((s.error for s in self._subchannels if s.error), "")
        return f"failed to connect to all addresses; last error: {error}"

    # --- state ------------------------------------------------------------------------------------------
    def state_changed(self) -> None:
        """The best of the subchannels' states is the channel's."""
        states = {subchannel.state for subchannel in self._subchannels}
        for state in (State.READY, State.CONNECTING, State.IDLE, State.TRANSIENT_FAILURE):
            if state in states:
                self._set_state(state)
                return

    def _set_state(self, state: State) -> None:
        if state is not self._state and self._state is not State.SHUTDOWN:
            self._state = state
            for waiter in self._state_waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _wait_change(self) -> None:
        waiter = self.loop.create_future()
        self._state_waiters.add(waiter)
        try:
            await waiter
        finally:
            self._state_waiters.discard(waiter)

    def get_state(self, try_to_connect: bool = False) -> State:
        if try_to_connect and self._state is State.IDLE:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last_observed_state: Any) -> None:
        while self._state == last_observed_state:
            await self._wait_change()

    async def channel_ready(self) -> None:
        while self._state is not State.READY:
            if self._closed:
                raise UsageError("Channel is closed.")
            self._connect()
            await self._wait_change()

    # --- the end ----------------------------------------------------------------------------------------
    async def close(self, grace: float | None = None) -> None:
        """Takes no new calls. Open ones have `grace` seconds; with None they are cancelled now."""
        if self._closed:
            return
        self._closed = True
        if grace and self.calls:
            end = self.loop.time() + grace
            while self.calls and self.loop.time() < end:  # noqa: ASYNC110 - once, at the end
                await asyncio.sleep(min(CLOSE_LOOK_S, grace))
        for call in tuple(self.calls):
            call.cancel()
        self._waiting.clear()
        if self._resolving is not None:
            self._resolving.cancel()
        for subchannel in self._subchannels:
            subchannel.close()
        for endpoint in tuple(self.endpoints):
            endpoint.flush()
            endpoint.close()
        self._set_state(State.SHUTDOWN)

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def log_failed_iterator(path: str, error: Exception) -> None:
        log.error("the request iterator of a call of %s failed: %s", path, error, exc_info=error)


def _just(address: Address) -> Callable[[], Any]:
    async def addresses() -> list[Address]:
        return [address]

    return addresses


def _look_like_grpcs() -> None:
    register_as_grpcs(
        Channel=Channel,
        UnaryUnaryCall=UnaryUnaryCall,
        UnaryStreamCall=UnaryStreamCall,
        StreamUnaryCall=StreamUnaryCall,
        StreamStreamCall=StreamStreamCall,
        UnaryUnaryMultiCallable=UnaryUnaryMultiCallable,
        UnaryStreamMultiCallable=UnaryStreamMultiCallable,
        StreamUnaryMultiCallable=StreamUnaryMultiCallable,
        StreamStreamMultiCallable=StreamStreamMultiCallable,
    )


def insecure_channel(
    target: str,
    options: ChannelArguments | None = None,
    compression: Any = None,
    interceptors: Any = None,
) -> Channel:
    """A channel without TLS. NotImplementedError: interceptors were given."""
    refuse_interceptors(interceptors)
    _look_like_grpcs()
    return Channel(target, None, options, compression)


def secure_channel(
    target: str,
    credentials: ChannelCredentials,
    options: ChannelArguments | None = None,
    compression: Any = None,
    interceptors: Any = None,
) -> Channel:
    """A channel with TLS; `ssl_channel_credentials` makes its credentials. NotImplementedError: interceptors
    were given.
    """
    refuse_interceptors(interceptors)
    _look_like_grpcs()
    if not isinstance(credentials, ChannelCredentials):
        raise TypeError(
            "credentials must be trovemq_rpc's (ssl_channel_credentials): grpcio's cannot be read"
        )
    return Channel(target, credentials, options, compression)
