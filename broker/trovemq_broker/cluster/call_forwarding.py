"""Forwards clients' calls to other brokers: two connections to each, with this broker's log-in.

| failure                                | the error                                                         |
|----------------------------------------|-------------------------------------------------------------------|
| the broker is not in the routes        | BROKER_NOT_FOUND                                                  |
| it does not listen, or the connection  | BROKER_UNREACHABLE; a send may have been stored                   |
| broke                                  |                                                                   |
| it does not answer in time             | REQUEST_TIMEOUT, shortly before the client's own deadline         |
| CALLS_MAX calls are open at it, or     | LIMIT_EXCEEDED                                                    |
| RECEIVES_MAX, and it is a receive or a |                                                                   |
| native stream                          |                                                                   |
| it does not take this broker's log-in, | AUTHENTICATION_FAILED                                             |
| or checks none, while this one does    |                                                                   |

The other broker believes the name of the client's user because only a super user may forward: a stranger
cannot set it. A session that the other broker does not know any more is replaced once for each call, which
was refused before anything was done.

Invariants
- At most CALLS_MAX calls, and as many telemetry streams, are open at one broker, each kind on a separate
  connection: fewer than a connection may have.
- A connection stays open while its broker is in the routes at that address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from trovemq_broker.cluster.config_calls import Endpoint, Endpoints, RoutedBrokers, reported
from trovemq_broker.cluster.nameserver_session import ReadCredentials, Session, open_session
from trovemq_proto import errors
from trovemq_proto.channels import Channel, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import CALLER_KEY, PEER_KEY, signed_path
from trovemq_proto.v1 import forwarding_pb2 as pb

CALLS_MAX: Final = 900
"""Of one broker. Its connections have 1,000 streams by default."""
RECEIVES_MAX: Final = 700
"""No receive begins while this many calls are open: the others are left to calls that do not wait, such as
acknowledgements of the messages that were received."""
RECEIVES: Final = ("ReceiveMessage", "PullMessage")
STREAMS: Final = frozenset(
    {
        "/trovemq.v1.ConsumerService/Consume",
        "/trovemq.v1.MessageService/Append",
        "/trovemq.v1.MessageService/Fetch",
        "/trovemq.v1.ProducerService/CheckHalves",
        "/trovemq.v1.TransactionService/Transact",
    }
)
"""Native calls that stay open as long as the client wants: none begins beyond RECEIVES_MAX, either."""
LOG_IN_S: Final = 3.0
CALL_S: Final = 30.0
"""Of a client without a deadline."""
EARLIER_S: Final = 0.1
"""Margin before the client's deadline at which a call ends, with an error that names the broker."""

Key = tuple[str, str]
"""A broker, and the use of the connection."""
CALLS: Final = "calls"
TELEMETRY: Final = "telemetry streams"
NATIVE: Final = "native calls"

_FORWARD: Final = "/trovemq.v1.ForwardingService/Forward"
_TELEMETRY: Final = "/trovemq.v1.ForwardingService/ForwardTelemetry"
_NO_TLS: Final = "a call that came by TLS is forwarded by TLS only (tls_listen there, nameserver_tls here)"


class Client(Protocol):
    """The client of a call, as server/core/forwarding.py has it."""

    @property
    def caller(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def metadata(self) -> Any: ...


class ClientCall(Protocol):
    @property
    def client(self) -> Client: ...

    @property
    def method(self) -> str: ...

    @property
    def request(self) -> bytes: ...

    @property
    def remaining_s(self) -> float | None: ...

    @property
    def by_tls(self) -> bool: ...


@dataclass(slots=True, eq=False)
class _Connection:
    """To one broker. `session`: None before the first log-in."""

    endpoint: Endpoint
    channel: Channel
    session: Session | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def logged_in(self, credentials: ReadCredentials | None, instead_of: Session | None) -> Session:
        """A session that is another one than `instead_of`."""
        async with self.lock:
            if self.session is None or self.session is instead_of:
                with reported(self.endpoint):
                    self.session = await open_session(
                        self.channel, credentials, LOG_IN_S, must_check=self.endpoint.must_check
                    )
            return self.session


class CallForwarder:
    """`close` at the end."""

    def __init__(
        self, routes: RoutedBrokers, endpoints: Endpoints, credentials: ReadCredentials | None
    ) -> None:
        self._routes = routes
        self._endpoints = endpoints
        self._credentials = credentials
        self._connections: dict[Key, _Connection] = {}
        self._open: dict[Key, int] = {}
        self.forwarded = 0
        self.failed: dict[str, int] = {}
        """Calls that failed here, by error."""

    @property
    def open_calls(self) -> int:
        return sum(self._open.values())

    @property
    def has_tls(self) -> bool:
        """As server/core/forwarding.py has it."""
        return self._endpoints.has_tls

    async def close(self) -> None:
        connections = [*self._connections.values()]
        self._connections.clear()
        for one in connections:
            await one.channel.close()

    async def forward(self, broker: str, call: ClientCall) -> AsyncGenerator[bytes, None]:
        """The replies of the other broker; see server/core/forwarding.py."""
        key = broker, CALLS
        self._begin(key, RECEIVES_MAX if call.method in RECEIVES else CALLS_MAX)
        try:
            timeout_s = CALL_S if call.remaining_s is None else max(call.remaining_s - EARLIER_S, EARLIER_S)
            request = pb.ForwardRequest(
                client=_client(call.client), method=call.method, request=call.request
            ).SerializeToString()
            connection = await self._connection(key, by_tls=call.by_tls)
            refused: Session | None = None
            until = asyncio.get_running_loop().time() + timeout_s
            while True:
                session = await self._logged_in(connection, refused, until)
                left_s = until - asyncio.get_running_loop().time()
                try:
                    async with aclosing(self._replies(connection, session, request, left_s)) as replies:
                        async for reply in replies:
                            refused = session  # from the first reply on nothing is repeated
                            yield reply
                    return
                except TroveError as error:
                    if error.spec is not errors.AUTHENTICATION_FAILED or refused is not None:
                        raise
                    refused = session
        except TroveError as error:
            self.failed[error.symbol] = self.failed.get(error.symbol, 0) + 1
            raise
        finally:
            self._end(key)

    async def _logged_in(self, connection: _Connection, refused: Session | None, until: float) -> Session:
        """Calls that wait for the same log-in end by their own deadlines. TroveError REQUEST_TIMEOUT."""
        try:
            async with asyncio.timeout_at(until):
                return await connection.logged_in(self._credentials, refused)
        except TimeoutError:
            broker = connection.endpoint.broker
            text = f"broker {broker} at {connection.endpoint.address} did not answer the log-in in time"
            raise TroveError(errors.REQUEST_TIMEOUT, text, broker=broker) from None

    async def _replies(
        self, connection: _Connection, session: Session, request: bytes, timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        metadata, sign = session.call(_FORWARD)
        ask = connection.channel.unary_stream(_FORWARD, response_deserializer=pb.ForwardReply.FromString)
        stream = ask(sign(request), metadata=metadata, timeout=max(timeout_s, EARLIER_S))
        try:
            while (reply := await _following(stream, connection.endpoint)) is not None:
                yield reply
        finally:
            stream.cancel()

    async def open_telemetry(self, broker: str, client: Client, *, by_tls: bool) -> ForwardedTelemetry:
        """A telemetry stream of the client there; see server/core/forwarding.py."""
        key = broker, TELEMETRY
        self._begin(key)
        try:
            connection = await self._connection(key, by_tls=by_tls)
            session = await connection.logged_in(self._credentials, None)
            metadata, sign = session.call(_TELEMETRY)
            ask = connection.channel.stream_stream(
                _TELEMETRY, response_deserializer=pb.ForwardReply.FromString
            )
            stream = ForwardedTelemetry(self, connection, session, ask(metadata=metadata), sign)
        except BaseException:
            self._end(key)
            raise
        try:
            await stream.send(pb.ForwardTelemetryRequest(client=_client(client)))
        except BaseException:
            stream.cancel()
            raise
        return stream

    async def open_native(
        self, broker: str, path: str, client: Client, remaining_s: float | None, *, by_tls: bool
    ) -> ForwardedNative:
        """A native call of the client there; see server/core/forwarding.py."""
        key = broker, NATIVE
        self._begin(key, RECEIVES_MAX if path in STREAMS else CALLS_MAX)
        try:
            connection = await self._connection(key, by_tls=by_tls)
            until = asyncio.get_running_loop().time() + LOG_IN_S
            session = await self._logged_in(connection, None, until)
            signed, sign = session.call(signed_path(path, client.peer, client.caller))
            metadata = [*signed, *client.metadata, (PEER_KEY, client.peer)]
            if client.caller:
                metadata.append((CALLER_KEY, client.caller.encode()))
            ask = connection.channel.stream_stream(path, response_deserializer=bytes)
            timeout_s = None if remaining_s is None else max(remaining_s - EARLIER_S, EARLIER_S)
            call = ask(metadata=metadata, timeout=timeout_s)
            return ForwardedNative(self, connection, session, call, sign)
        except BaseException:
            self._end(key)
            raise

    # --- the brokers ----------------------------------------------------------------------------------
    def _begin(self, key: Key, limit: int = CALLS_MAX) -> None:
        """TroveError LIMIT_EXCEEDED."""
        count, broker = self._open.get(key, 0), key[0]
        if count >= limit:
            text = f"{limit} calls are being forwarded to broker {broker} already"
            raise TroveError(errors.LIMIT_EXCEEDED, text, broker=broker)
        self._open[key] = count + 1
        self.forwarded += 1

    def _end(self, key: Key) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]

    async def _connection(self, key: Key, *, by_tls: bool) -> _Connection:
        """TroveError BROKER_NOT_FOUND; BROKER_UNREACHABLE without TLS for a call that came by it, unless the
        broker is on this machine."""
        broker = key[0]
        routed = next((one for one in self._routes.brokers if one.name == broker), None)
        if routed is None:
            await self._close_others()
            text = f"broker {broker} is away: it is not in the routes"
            raise TroveError(errors.BROKER_NOT_FOUND, text, broker=broker)
        endpoint = self._endpoints.routed(routed)
        if by_tls and not endpoint.is_private:
            fields = {"broker": broker, errors.UNREAD: "true"}
            raise TroveError(errors.BROKER_UNREACHABLE, f"broker {broker}: {_NO_TLS}", **fields)
        known = self._connections.get(key)
        if known is not None and known.endpoint == endpoint:
            return known
        channel = open_channel(str(endpoint.address), endpoint.channels)
        made = self._connections[key] = _Connection(endpoint, channel)
        if known is not None:
            await known.channel.close()
        await self._close_others()
        return made

    async def _close_others(self) -> None:
        """Closes the connections to brokers that are not in the routes any more."""
        live = {one.name for one in self._routes.brokers}
        for key in [key for key in self._connections if key[0] not in live and not self._open.get(key)]:
            await self._connections.pop(key).channel.close()

    def ended(self, connection: _Connection, kind: str) -> None:
        """A telemetry stream, or a native call, has ended."""
        self._end((connection.endpoint.broker, kind))

    def dismiss(self, connection: _Connection, session: Session) -> None:
        """The broker does not know the session any more."""
        if connection.session is session:
            connection.session = None


class ForwardedTelemetry:
    """A client's telemetry stream at another broker."""

    def __init__(
        self, forwarder: CallForwarder, connection: _Connection, session: Session, stream: Any, sign: Any
    ) -> None:
        self._forwarder = forwarder
        self._connection = connection
        self._session = session
        self._stream = stream
        self._sign = sign
        self._has_ended = False

    async def send(self, message: pb.ForwardTelemetryRequest) -> None:
        with reported(self._connection.endpoint):
            await self._stream.write(self._sign(message.SerializeToString()))

    async def write(self, command: bytes) -> None:
        """Raises TroveError."""
        await self.send(pb.ForwardTelemetryRequest(command=command))

    async def read(self) -> bytes | None:
        """The next command; None at the end. Raises TroveError."""
        try:
            return await _following(self._stream, self._connection.endpoint)
        except TroveError as error:
            if error.spec is errors.AUTHENTICATION_FAILED:
                self._forwarder.dismiss(self._connection, self._session)
            raise

    def cancel(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._stream.cancel()
            self._forwarder.ended(self._connection, TELEMETRY)


class ForwardedNative:
    """A client's native call at the leader of its replica group."""

    def __init__(
        self, forwarder: CallForwarder, connection: _Connection, session: Session, call: Any, sign: Any
    ) -> None:
        self._forwarder = forwarder
        self._connection = connection
        self._session = session
        self._call = call
        self._sign = sign
        self._has_ended = False

    async def write(self, message: bytes) -> None:
        """Raises TroveError."""
        with reported(self._connection.endpoint):
            await self._call.write(self._sign(message))

    async def end(self) -> None:
        """Raises TroveError."""
        with reported(self._connection.endpoint):
            await self._call.done_writing()

    async def read(self) -> bytes | None:
        """The next reply; None at the end. Raises TroveError, with UNREAD if nothing was done."""
        try:
            reply: bytes | None = await _next_reply(self._call, self._connection.endpoint)
        except TroveError as error:
            if error.spec is errors.AUTHENTICATION_FAILED:  # the session has ended
                self._forwarder.dismiss(self._connection, self._session)
                error.fields[errors.UNREAD] = "true"
            raise
        return reply

    def cancel(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._call.cancel()
            self._forwarder.ended(self._connection, NATIVE)


async def _following(stream: Any, endpoint: Endpoint) -> bytes | None:
    """The next reply of a forwarded call, as of _next_reply."""
    reply = await _next_reply(stream, endpoint)
    return None if reply is None else bytes(reply.reply)


async def _next_reply(stream: Any, endpoint: Endpoint) -> Any:
    """The next message of the stream; None at its end. Raises TroveError, with the field UNREAD if no broker
    has looked at the call."""
    try:
        with reported(endpoint):
            reply = await stream.__anext__()
    except StopAsyncIteration:
        return None
    except TroveError as error:
        if getattr(stream, "unprocessed", False):
            error.fields[errors.UNREAD] = "true"
        raise
    return reply


def _client(client: Client) -> pb.ForwardedClient:
    metadata: Mapping[str, str] = dict(client.metadata)
    return pb.ForwardedClient(caller=client.caller, peer=client.peer, metadata=metadata)
