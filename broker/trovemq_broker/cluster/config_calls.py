"""Calls of ClusterConfigService at another broker: its address, the log-in, the errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from trovemq_broker.cluster.cluster_reply import RoutedBroker
from trovemq_broker.cluster.nameserver_session import ReadCredentials, Session, error_in, open_session
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.request_bounds import BoundedReader
from trovemq_proto import errors
from trovemq_proto.authentication.scram import ScramError
from trovemq_proto.channels import Channel, ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.unanswered import why_unanswered
from trovemq_proto.v1 import cluster_config_pb2 as pb

SERVICE: Final = "/trovemq.v1.ClusterConfigService/"
LOG_IN_S: Final = 10.0
SHORT_LOG_IN_S: Final = 3.0
"""Of the calls of a take-over: an operator waits for it."""

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker is reached, by which connection. `must_check`: it has to check this broker's log-in."""

    broker: str
    address: Address
    channels: ChannelSettings
    must_check: bool = False

    @property
    def is_private(self) -> bool:
        """Whether the connection cannot be read by others."""
        return self.channels.tls is not None or self.address.is_loopback


class RoutedBrokers(Protocol):
    """The brokers that are called."""

    @property
    def brokers(self) -> Sequence[RoutedBroker]: ...


class Endpoints:
    """Finds brokers. `channels`: the settings of connections to nameservers; without TLS, brokers are called
    plain. `must_check`: of all endpoints."""

    def __init__(self, routes: RoutedBrokers, channels: ChannelSettings, *, must_check: bool = False) -> None:
        self._routes = routes
        self._channels = channels
        self._must_check = must_check
        self._last: Endpoint | None = None

    @property
    def has_tls(self) -> bool:
        return self._channels.tls is not None

    def at(self, broker: str, address: Address) -> Endpoint:
        """The broker at a known address: of its TLS, where brokers are called by TLS."""
        return Endpoint(broker, address, self._named(self._channels), self._must_check)

    def routed(self, broker: RoutedBroker) -> Endpoint:
        if self._channels.tls is not None and broker.tls_address is not None:
            return self.at(broker.name, broker.tls_address)
        plain = replace(self._channels, tls=None)
        return Endpoint(broker.name, broker.address, plain, self._must_check)

    def find(self, broker: str) -> Endpoint | None:
        """By the routes, else where it was reached the last time."""
        for one in self._routes.brokers:
            if one.name == broker:
                return self.routed(one)
        return self._last if self._last is not None and self._last.broker == broker else None

    def reached(self, endpoint: Endpoint) -> None:
        self._last = endpoint

    def _named(self, channels: ChannelSettings) -> ChannelSettings:
        """A broker's certificate has its own name."""
        tls = channels.tls
        return channels if tls is None else replace(channels, tls=replace(tls, server_name=None))


CONFIG_PARTS_MAX: Final = 262_144
"""Fields of a ConfigPart: 1,000 entries, each with its settings, and 1,000 former generations."""
_READER: Final = BoundedReader(pb.ConfigPart, CONFIG_PARTS_MAX)


def read_part(data: bytes) -> pb.ConfigPart:
    """TroveError LIMIT_EXCEEDED, before protobuf makes an object of each field; REQUEST_ILLEGAL."""
    try:
        part: pb.ConfigPart = _READER(data)
    except DecodeError:
        raise TroveError(errors.REQUEST_ILLEGAL, "the bytes are not a ConfigPart") from None
    return part


class BrokerConnection:
    """An open connection to another broker, with its log-in."""

    def __init__(
        self, endpoint: Endpoint, channel: Channel, credentials: ReadCredentials | None, session: Session
    ) -> None:
        self.endpoint: Final = endpoint
        self._channel = channel
        self._credentials = credentials
        self._session = session

    async def unary(self, method: str, request: Message, reply: type[Reply], timeout_s: float) -> Reply:
        """TroveError: that of the other broker, else BROKER_UNREACHABLE, REQUEST_TIMEOUT."""
        try:
            return await self._unary(method, request, reply, timeout_s)
        except TroveError as error:
            if error.spec is not errors.AUTHENTICATION_FAILED or self._credentials is None:
                raise
        with reported(self.endpoint):  # the session has ended
            self._session = await open_session(
                self._channel, self._credentials, SHORT_LOG_IN_S, must_check=self.endpoint.must_check
            )
        return await self._unary(method, request, reply, timeout_s)

    async def _unary(self, method: str, request: Message, reply: type[Reply], timeout_s: float) -> Reply:
        metadata, sign = self._session.call(SERVICE + method)
        ask = self._channel.unary_unary(SERVICE + method, response_deserializer=reply.FromString)
        with reported(self.endpoint):
            answer: Reply = await ask(sign(request.SerializeToString()), metadata=metadata, timeout=timeout_s)
            return answer

    def replies(self, method: str, request: Message, timeout_s: float) -> Any:
        """The stream of replies to one request, as bytes: read_part() parses them. It raises AioRpcError."""
        metadata, sign = self._session.call(SERVICE + method)
        ask = self._channel.unary_stream(SERVICE + method, response_deserializer=bytes)
        return ask(sign(request.SerializeToString()), metadata=metadata, timeout=timeout_s)

    def stream(self, method: str) -> tuple[Any, Any]:
        """A stream in both directions, whose replies are bytes (read_part() parses them), and the function
        that signs its messages."""
        metadata, sign = self._session.call(SERVICE + method)
        ask = self._channel.stream_stream(SERVICE + method, response_deserializer=bytes)
        return ask(metadata=metadata), sign


class _Reported:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        endpoint = self._endpoint
        where = f"broker {endpoint.broker} at {endpoint.address}"
        if isinstance(error, grpc.aio.AioRpcError):  # trovemq_rpc's errors are of this class, too
            described = error_in(error.trailing_metadata())
            if described is not None:
                raise described from None
            name = error.code().name
            spec = errors.REQUEST_TIMEOUT if name == "DEADLINE_EXCEEDED" else errors.BROKER_UNREACHABLE
            text = f"{where}: {why_unanswered(name, error.details())}"
            raise TroveError(spec, text, broker=endpoint.broker) from None
        if isinstance(error, (SettingsError, ScramError)):
            raise TroveError(
                errors.AUTHENTICATION_FAILED, f"{where}: {error}", broker=endpoint.broker
            ) from None


def reported(endpoint: Endpoint) -> _Reported:
    """A block whose errors of a call to the broker become TroveErrors: that of the broker, else
    BROKER_UNREACHABLE, REQUEST_TIMEOUT, AUTHENTICATION_FAILED."""
    return _Reported(endpoint)


@asynccontextmanager
async def connected(
    endpoint: Endpoint, credentials: ReadCredentials | None, timeout_s: float = LOG_IN_S
) -> AsyncIterator[BrokerConnection]:
    """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, AUTHENTICATION_FAILED; those of the other broker."""
    async with open_channel(str(endpoint.address), endpoint.channels) as channel:
        with reported(endpoint):
            session = await open_session(channel, credentials, timeout_s, must_check=endpoint.must_check)
        yield BrokerConnection(endpoint, channel, credentials, session)
