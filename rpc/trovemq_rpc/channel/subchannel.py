"""A connection that is opened on demand, and again when it is lost, with a pause after each failure.

| state | leads to |
| --- | --- |
| IDLE | CONNECTING: a call needs a connection |
| CONNECTING | READY: the server's SETTINGS came; TRANSIENT_FAILURE: no address answered in time |
| TRANSIENT_FAILURE | CONNECTING: the pause is over |
| READY | IDLE: the connection was lost, or takes no more calls |
| all | SHUTDOWN: the channel was closed |

The addresses of a name are raced (RFC 8305 section 5): an attempt begins a quarter of a second after the one
before it, or as soon as that one failed. The first connection wins. Pauses grow as gRPC's connection backoff
says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.channel.connectivity import ChannelConnectivity as State
from trovemq_rpc.channel.endpoint import ChannelEndpoint
from trovemq_rpc.channel.target import Address
from trovemq_rpc.channel.zoned import connected_socket
from trovemq_rpc.credentials import ChannelCredentials
from trovemq_rpc.http2.constants import STREAM_ID_LIMIT
from trovemq_rpc.loop_parts import LoopParts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import Options
from trovemq_rpc.tls import Tls

RACE_DELAY_S: Final = 0.25  # RFC 8305 section 8
BACKOFF_FACTOR: Final = 1.6  # of a pause to the one before it: gRPC's connection backoff
BACKOFF_JITTER: Final = 0.2  # a pause is up to a fifth shorter or longer: clients shall not come together
RECONNECT_INTERVAL_S: Final = 0.1  # between a connection that was lost at once and the next

_random = random.Random()  # noqa: S311 - spreads reconnections, guards nothing


class ConnectError(Exception):
    """No address could be reached."""


class SubchannelOwner(Protocol):
    """The part of a channel that a subchannel needs."""

    credentials: ChannelCredentials | None
    server_name: str
    options: Options
    budget: BytesBudget
    metrics: Metrics
    endpoints: set[ChannelEndpoint]

    @property
    def parts(self) -> LoopParts: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def state_changed(self) -> None: ...
    def send_waiting(self) -> None: ...
    def connect_failed(self, error: str) -> None: ...
    def connection_gone(self, subchannel: Any) -> None: ...


class Subchannel:
    """See the module. `addresses` is asked before each attempt."""

    def __init__(self, channel: SubchannelOwner, addresses: Callable[[], Awaitable[list[Address]]]) -> None:
        self.channel = channel
        self.state = State.IDLE
        self.endpoint: ChannelEndpoint | None = None
        self.error = ""
        self._addresses = addresses
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._connected_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether it has failed to connect, and has not connected since."""
        return self._failures > 0

    # --- use --------------------------------------------------------------------------------------------
    def usable(self) -> ChannelEndpoint | None:
        """The connection, if it takes one more call."""
        endpoint = self.endpoint
        if endpoint is None or not endpoint.can_open:
            if endpoint is not None and endpoint.connection.next_stream_id >= STREAM_ID_LIMIT:
                self._retire(endpoint)
            return None
        return endpoint

    def _retire(self, endpoint: ChannelEndpoint) -> None:
        """Retires an endpoint whose stream ids are used up (RFC 9113 section 5.1.1): its calls end there, new
        ones go elsewhere."""
        self.gone(endpoint)
        endpoint.drain()

    def connect(self) -> None:
        """Begins to connect, where nothing does yet."""
        if self._task is None and self.endpoint is None and self.state is not State.SHUTDOWN:
            self._task = self.channel.loop.create_task(self._connect())

    def close(self) -> None:
        self._set(State.SHUTDOWN)
        if self._task is not None:
            self._task.cancel()

    def _set(self, state: State) -> None:
        if self.state is not state and self.state is not State.SHUTDOWN:
            self.state = state
            self.channel.state_changed()

    # --- connecting -------------------------------------------------------------------------------------
    async def _connect(self) -> None:
        loop = self.channel.loop
        options = self.channel.options
        early = self._connected_at + RECONNECT_INTERVAL_S - loop.time()
        if self._connected_at and early > 0:
            await asyncio.sleep(early)
        while True:
            self._set(State.CONNECTING)
            started = loop.time()
            try:
                async with asyncio.timeout(options.connect_timeout_s):
                    endpoint = await self._race(await self._addresses())
                if endpoint.closing or endpoint.draining:  # since its settings came: it carried no call
                    self.channel.endpoints.discard(endpoint)
                    raise ConnectError(f"{endpoint.peer()}: {endpoint.reason}")
            except Exception as error:  # a name, an address, a certificate: calls must hear of each
                self.error = str(error) or "the time to connect was not enough"
                self._failures += 1
                self._set(State.TRANSIENT_FAILURE)
                self.channel.connect_failed(self.error)
                await asyncio.sleep(max(0.0, started + self._backoff() - loop.time()))
                continue
            break
        self._failures = 0
        self._connected_at = loop.time()
        self._task = None
        self.endpoint = endpoint
        self._set(State.READY)
        self.channel.send_waiting()

    def _backoff(self) -> float:
        options = self.channel.options
        base = options.backoff_initial_s * BACKOFF_FACTOR ** min(self._failures - 1, 64)
        return min(base, options.backoff_max_s) * _random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)

    async def _race(self, addresses: list[Address]) -> ChannelEndpoint:
        if not addresses:
            raise ConnectError("the name has no address")
        errors: list[str] = []
        running: set[asyncio.Task[ChannelEndpoint]] = set()
        waiting = list(addresses)
        try:
            while waiting or running:
                if waiting:
                    running.add(self.channel.loop.create_task(self._open(waiting.pop(0))))
                done, running = await asyncio.wait(
                    running,
                    timeout=RACE_DELAY_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                won = [task.result() for task in done if task.exception() is None]
                for endpoint in won[1:]:
                    endpoint.abort()
                if won:
                    return won[0]
                errors += [str(task.exception()) for task in done]
        finally:
            for task in running:
                task.cancel()
                task.add_done_callback(_abort_late)
        raise ConnectError("; ".join(errors))

    async def _open(self, address: Address) -> ChannelEndpoint:
        """A connection whose server has sent its settings."""
        channel = self.channel
        loop = channel.loop
        problem: asyncio.Future[str] = loop.create_future()
        """Why the connection is gone; "" if it is ready. No exception: it may be gone before
        `create_connection` returns, or raises the same, and no task would retrieve the exception."""

        def on_ready(_endpoint: ChannelEndpoint) -> None:
            if not problem.done():
                problem.set_result("")

        def on_gone(endpoint: ChannelEndpoint) -> None:
            if not problem.done():
                problem.set_result(endpoint.reason)

        def factory() -> ChannelEndpoint:
            tls = None
            if channel.credentials is not None:
                tls = Tls(channel.credentials.context, False, channel.server_name)
            made = ChannelEndpoint(channel.parts, channel.options, channel.budget, channel.metrics, tls)
            made.on_ready, made.on_gone = on_ready, on_gone
            return made

        try:
            if address.unix:
                _, endpoint = await loop.create_unix_connection(factory, address.unix)
            elif "%" in address.host:
                sock = await connected_socket(address.host, address.port)
                _, endpoint = await loop.create_connection(factory, sock=sock)
            else:
                _, endpoint = await loop.create_connection(factory, address.host, address.port)
        except OSError as error:
            raise ConnectError(f"{address}: {error}") from None
        try:
            if await problem:
                raise ConnectError(f"{address}: {problem.result()}")
        except BaseException:
            endpoint.abort()
            raise
        endpoint.on_gone = self.gone
        endpoint.on_capacity = channel.send_waiting
        channel.endpoints.add(endpoint)
        return endpoint

    def gone(self, endpoint: ChannelEndpoint) -> None:
        """The connection is lost, or takes no more calls."""
        if endpoint.transport is None or endpoint.closing:
            self.channel.endpoints.discard(endpoint)
        if self.endpoint is endpoint:
            self.endpoint = None
            self._set(State.IDLE)
            self.channel.connection_gone(self)


def _abort_late(task: asyncio.Task[ChannelEndpoint]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().abort()
