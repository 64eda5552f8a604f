"""Mutated byte streams: whatever comes, a core raises nothing, keeps to its limits and fails only by the
protocol.
"""

from random import Random

from tests.support.trials import SOAK, Trials
from tests.unit.rpc.connection_pair import RESPONSE, Pair
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE, ErrorCode
from trovemq_rpc.http2.errors import ConnectionFault
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.testing.pipe import Faults

INPUTS = 100_000 if SOAK else 750
PER_RECORDING = 100
LIMITS = Limits(stream_window=1 << 16, connection_window=1 << 17)
ANSWER, TRAILERS = Connection.encode(RESPONSE), Connection.encode([(b"grpc-status", b"0")])

# Numbers at which a length, an id, a window or an index turns.
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x3FFF, 0x4000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]


def record(seed: int) -> tuple[bytes, bytes]:
    """The bytes of a client and a server in a short random conversation."""
    pair = Pair(seed, LIMITS, LIMITS, Faults())
    wires = (bytearray(), bytearray())
    for side, wire in zip(pair.sides, wires, strict=True):
        write = side.outgoing.write

        def recorded(pieces: list[bytes], write: object = write, wire: bytearray = wire) -> None:
            wire.extend(b"".join(pieces))
            write(pieces)  # type: ignore[operator]

        side.outgoing.write = recorded  # type: ignore[method-assign, assignment]
    actions = [
        Pair.open,
        Pair.call,
        Pair.head,
        Pair.answer,
        Pair.data,
        Pair.trailers,
        Pair.ping,
        Pair.reset,
        Pair.settle,
    ]
    for action in pair.random.choices(actions, k=15):
        action(pair)
    pair.settle()
    return bytes(wires[0]), bytes(wires[1])


def split(wire: bytes) -> list[bytes]:
    """A recorded stream as its frames, the client's magic apart."""
    parts, at = [], 0
    if wire.startswith(PREFACE):
        parts.append(PREFACE)
        at = len(PREFACE)
    while at < len(wire):
        size = 9 + int.from_bytes(wire[at : at + 3], "big")
        parts.append(wire[at : at + size])
        at += size
    return parts


def mutated(random: Random, wire: bytes) -> bytes:
    parts = split(wire)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(parts))
        kind = random.randrange(7)
        if kind == 0:
            parts[at:at] = [parts[random.randrange(len(parts))]] * random.choice((1, 1, 50))
        elif kind == 1 and len(parts) > 1:
            del parts[at]
        elif kind == 2:
            other = random.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif kind == 3:
            parts[at] = parts[at][: random.randint(0, len(parts[at]))]
        elif kind == 4:
            parts.insert(
                at,
                frames.frame_header(4, random.randrange(12), random.randrange(256), random.choice(EDGES))
                + random.randbytes(4),
            )
        else:
            part = bytearray(parts[at])
            place = random.randrange(min(len(part), 40)) if part else 0
            value = random.choice(EDGES).to_bytes(4, "big")[-random.randint(1, 4) :]
            part[place : place + len(value)] = value if kind == 5 else random.randbytes(len(value))
            parts[at] = bytes(part)
    return b"".join(parts)


class Owner:
    """The layer above a core: answers calls and acknowledges received bytes, as long as it may."""

    def __init__(self, client: bool) -> None:
        self.core = Connection(client, LIMITS)
        self.client = client
        if client:
            for _ in range(10):
                self.core.open_stream(ANSWER)
        self.fault: ConnectionFault | None = None

    def receive(self, data: bytes) -> None:
        for kind, stream, value, _ in self.core.receive(data):
            assert self.fault is None, "an event after the fault"
            if kind == ev.FAULT:
                self.fault = value
            elif kind == ev.DATA:
                self.core.acknowledge(len(value))
                self.core.set_stream_window(stream, LIMITS.stream_window)
            elif kind == ev.HEADERS and not self.client and stream.id in self.core.streams:
                self.core.send_answer(stream, ANSWER, (b"\0\0\0\0\5", b"hello"), TRAILERS)


def check(random: Random, client: bool, wire: bytes) -> str:
    owner = Owner(client)
    while wire:
        size = random.choice((1, 20, 1000, 1 << 20))
        owner.receive(wire[:size])
        wire = wire[size:]
    core = owner.core
    output = b"".join(core.take_output())
    assert len(core.streams) <= LIMITS.concurrent_streams_max
    assert 0 <= core.receive_window <= LIMITS.connection_window + core.unacknowledged or owner.fault
    if owner.fault is None:
        return "sound"
    goaways = [frame for frame in split(output) if frame[3] == 7]
    assert len(goaways) == 1, "a failed connection says GOAWAY"
    assert int.from_bytes(goaways[0][13:17], "big") == owner.fault.code
    return owner.fault.code.name


def test_mutated_inputs_raise_nothing_but_the_protocols_own(trials: Trials) -> None:
    outcomes: dict[str, int] = {}
    for number in range(INPUTS):
        if number % PER_RECORDING == 0:
            recorded = record(number)
        random = Random(number)
        client = bool(number & 1)
        try:
            outcome = check(random, client, mutated(random, recorded[client]))
        except Exception as e:
            raise AssertionError(f"input {number}: {type(e).__name__}: {e}") from e
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    expected = {
        "sound",
        ErrorCode.PROTOCOL_ERROR.name,
        ErrorCode.FRAME_SIZE_ERROR.name,
        ErrorCode.COMPRESSION_ERROR.name,
    }
    assert expected <= outcomes.keys(), outcomes
    trials.count("rpc", "mutated inputs to a connection", INPUTS)
