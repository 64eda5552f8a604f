"""Two HTTP/2 cores joined by pipes, and the plain model of each stream's deliveries."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.testing.pipe import Faults, Pipe

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b":authority", b"a")]
RESPONSE = [(b":status", b"200")]
NOISE = Random(0).randbytes(400_000)  # the payload: a wrong order or place shows


@dataclass
class Direction:
    """One direction of a stream: its sent and its received bytes."""

    sent: bytearray = field(default_factory=bytearray)
    came: bytearray = field(default_factory=bytearray)
    opened: bool = False
    closed: bool = False
    came_open: bool = False
    came_end: bool = False


@dataclass
class Exchange:
    """A stream as both layers above see it. A reset by either side ends all promises but order."""

    number: int
    request: Direction = field(default_factory=Direction)
    response: Direction = field(default_factory=Direction)
    reset: bool = False


class Side:
    """A core with the layer above it: it keeps received messages and lets the peer send on when asked to."""

    def __init__(self, client: bool, limits: Limits, outgoing: Pipe) -> None:
        self.client = client
        self.core = Connection(client, limits)
        self.outgoing = outgoing
        self.streams: dict[int, Any] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.unacknowledged = 0
        self.pings: list[bytes] = []
        self.fault: Any = None

    def flush(self) -> None:
        if self.core.can_write:
            self.outgoing.write(self.core.take_output())

    def receive(self, data: bytes) -> None:
        for kind, stream, value, ended in self.core.receive(data):
            if kind == ev.FAULT:
                self.fault = value
            elif kind == ev.PONG:
                assert value == self.pings.pop(0)
            elif stream is not None and kind != ev.WRITABLE:
                self._on_stream(kind, stream, value, ended)

    def _on_stream(self, kind: int, stream: Any, value: Any, ended: bool) -> None:
        exchange = self.exchanges[stream.id]
        incoming = exchange.response if self.client else exchange.request
        if kind == ev.RESET:
            refused = value == ErrorCode.REFUSED_STREAM and not exchange.request.came_open
            answered = value == ErrorCode.NO_ERROR and exchange.response.came_end
            assert exchange.reset or refused or answered, f"{stream}: it was not reset"
            exchange.reset = exchange.reset or refused
            return
        assert not incoming.came_end, f"event {kind} after the end of {stream}"
        if kind == ev.HEADERS:
            assert not incoming.came_open
            incoming.came_open = True
            self.streams[stream.id] = stream
            assert dict(value.fields)[b"x-number"] == b"%d" % exchange.number
        elif kind == ev.DATA:
            assert incoming.came_open
            incoming.came += value
            self.unacknowledged += len(value)
            assert incoming.sent.startswith(incoming.came), f"{stream}: other bytes than were sent"
        incoming.came_end = ended

    def acknowledge(self) -> None:
        if self.unacknowledged:
            self.core.acknowledge(self.unacknowledged)
            self.unacknowledged = 0
        for stream in self.core.streams.values():
            self.core.set_stream_window(stream, self.core.limits.stream_window)


class Pair:
    """A client and a server, and random calls on them."""

    def __init__(self, seed: int, client_limits: Limits, server_limits: Limits, faults: Faults) -> None:
        self.random = Random(seed)
        self.client = Side(True, client_limits, Pipe(self.random, faults))
        self.server = Side(False, server_limits, Pipe(self.random, faults))
        self.sides = (self.client, self.server)
        self.server.exchanges = self.client.exchanges

    @property
    def exchanges(self) -> dict[int, Exchange]:
        return self.client.exchanges

    # --- random steps -------------------------------------------------------------------------------------
    def open(self) -> None:
        if not self.client.core.can_open:
            return
        end = self.random.random() < 0.2
        number = len(self.exchanges)
        block = Connection.encode([*REQUEST, (b"x-number", b"%d" % number)])
        stream = self.client.core.open_stream(block, end)
        exchange = self.exchanges[stream.id] = Exchange(number)
        exchange.request.opened, exchange.request.closed = True, end
        self.client.streams[stream.id] = stream

    def call(self) -> None:
        """A unary call by the short form."""
        if not self.client.core.can_open:
            return
        number = len(self.exchanges)
        body = NOISE[: self.random.choice((0, 10, 4000, 5000, 70_000))]
        block = Connection.encode([*REQUEST, (b"x-number", b"%d" % number)])
        stream = self.client.core.open_unary(block, (body[:5], body[5:]))
        exchange = self.exchanges[stream.id] = Exchange(number)
        exchange.request = Direction(sent=bytearray(body), opened=True, closed=True)
        self.client.streams[stream.id] = stream

    def answer(self) -> None:
        """The whole answer to a call, by the short form."""
        chosen = self._choose(self.server, lambda d: not d.opened and not d.closed)
        if chosen:
            stream, exchange = chosen
            body = NOISE[: self.random.choice((0, 10, 4000, 5000, 70_000))]
            head = Connection.encode([*RESPONSE, (b"x-number", b"%d" % exchange.number)])
            self.server.core.send_answer(
                stream, head, (body[:5], body[5:]), Connection.encode([(b"grpc-status", b"0")])
            )
            exchange.response.sent, exchange.response.opened, exchange.response.closed = (
                bytearray(body),
                True,
                True,
            )

    def head(self) -> None:
        chosen = self._choose(self.server, lambda d: not d.opened and not d.closed)
        if chosen:
            stream, exchange = chosen
            end = self.random.random() < 0.1
            block = Connection.encode([*RESPONSE, (b"x-number", b"%d" % exchange.number)])
            self.server.core.send_headers(stream, block, end)
            exchange.response.opened, exchange.response.closed = True, end

    def data(self) -> None:
        side = self.random.choice(self.sides)
        chosen = self._choose(side, lambda d: d.opened and not d.closed)
        if not chosen:
            return
        stream, exchange = chosen
        outgoing = exchange.request if side.client else exchange.response
        size = self.random.choice((0, 1, 100, 5000, 20_000, 70_000, 300_000))
        start = self.random.randrange(len(NOISE) - size)
        body = NOISE[start : start + size]
        cut = self.random.randint(0, size)
        end = self.random.random() < 0.3
        if not size and not end:
            return
        side.core.send_data(stream, [body[:cut], memoryview(body)[cut:]], size, end)
        outgoing.sent += body
        outgoing.closed = end

    def trailers(self) -> None:
        chosen = self._choose(self.server, lambda d: d.opened and not d.closed)
        if chosen:
            stream, exchange = chosen
            self.server.core.send_headers(stream, Connection.encode([(b"grpc-status", b"0")]), True)
            exchange.response.closed = True

    def reset(self) -> None:
        side = self.random.choice(self.sides)
        alive = [s for s in side.streams.values() if s.id in side.core.streams]
        if alive:
            stream = self.random.choice(alive)
            self.exchanges[stream.id].reset = True
            side.core.reset(stream, ErrorCode.CANCEL)

    def ping(self) -> None:
        side = self.random.choice(self.sides)
        side.pings.append(self.random.randbytes(8))
        side.core.ping(side.pings[-1])

    def acknowledge(self) -> None:
        self.random.choice(self.sides).acknowledge()

    def block_transport(self) -> None:
        side = self.random.choice(self.sides)
        side.core.transport_writable(not side.core.can_write)

    def deliver(self) -> None:
        side = self.random.choice(self.sides)
        side.flush()
        self._deliver(side)

    def _deliver(self, side: Side) -> None:
        other = self.server if side is self.client else self.client
        other.receive(side.outgoing.take())

    def _choose(self, side: Side, allowed: Any) -> tuple[Any, Exchange] | None:
        candidates = [
            (stream, self.exchanges[stream.id])
            for stream in side.streams.values()
            if stream.id in side.core.streams
            and allowed(
                self.exchanges[stream.id].request if side.client else self.exchanges[stream.id].response
            )
        ]
        return self.random.choice(candidates) if candidates else None

    # --- the end --------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Deliver and acknowledge until nothing moves."""
        moved = True
        while moved:
            moved = False
            for side in self.sides:
                if not side.core.can_write:
                    side.core.transport_writable(True)
                side.acknowledge()
                side.flush()
                while side.outgoing.size:
                    moved = True
                    self._deliver(side)

    def check(self) -> None:
        for side in self.sides:
            assert side.fault is None, side.fault
            assert not side.pings
            assert not side.core.blocked
        for exchange in self.exchanges.values():
            if not exchange.reset:
                for direction in (exchange.request, exchange.response):
                    if direction is exchange.request and exchange.response.closed:
                        continue  # a server that has answered reads no further (RFC 9113 section 8.1)
                    assert direction.came == direction.sent
                    assert direction.came_open == direction.opened
                    assert direction.came_end == direction.closed
        client, server = self.client.core, self.server.core
        assert client.send_window == server.receive_window
        assert server.send_window == client.receive_window
        assert client.streams.keys() == server.streams.keys()
        for stream_id, stream in client.streams.items():
            assert stream.send_window == server.streams[stream_id].receive_window or stream.state not in {
                0,
                2,
            }
            assert server.streams[stream_id].send_window == stream.receive_window or stream.state not in {
                0,
                1,
            }
