"""Frames of the Consume stream as the SDK's own values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trovemq.models.group import GroupSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import consumer_pb2

from .connection import Connection, Metadata, Stream
from .failures import error_from_wire
from .frames import split_records
from .groups import settings_from_wire

_METHOD: Final = "/trovemq.v1.ConsumerService/Consume"

RETURN: Final = consumer_pb2.RETURN
EXTEND: Final = consumer_pb2.EXTEND
DEAD_LETTER: Final = consumer_pb2.DEAD_LETTER
DirectMessage = consumer_pb2.DirectMessage
CommandAnswer = consumer_pb2.CommandAnswer
CommandResult = consumer_pb2.CommandResult


class Reason(NamedTuple):
    """Why messages are not consumed: the type of the exception, if there was one, and its text, or that of
    the program; `returned`: the program returned them, and has not chosen a dead letter."""

    error: str = ""
    text: str = ""
    returned: bool = False


class Change(NamedTuple):
    """How messages are settled that are not acknowledged: the invisible time, whether the delivery counts as
    no attempt, the kind (RETURN, EXTEND or DEAD_LETTER), and the reason."""

    invisible_ms: int = 0
    suspend: bool = False
    kind: consumer_pb2.SettlementKind = RETURN
    reason: Reason = Reason()

    @property
    def by_handle(self) -> bool:
        """Whether each message is named by its receipt handle."""
        return self.kind != RETURN


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive messages of one queue, under one receipt."""

    queue_id: int
    first_offset: int
    count: int
    attempt: int
    receipt: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a settlement: `error` is that of all its messages, `refused` has those of single offsets.
    `handle`: the new one of an extended message."""

    settlement_id: int
    error: TroveError | None
    refused: dict[int, TroveError]
    handle: str


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's command: to consume a message directly, or to answer with the stacks."""

    nonce: str
    message: DirectMessage | None


@dataclass(frozen=True, slots=True)
class ConsumeAnswer:
    """One reply: results, and a batch unless `batch` is 0. `joined`: another client has joined the group.
    `void_batch`: the messages of batches up to this one that the program has not begun are to be returned.
    `settings`: those of the group, in the first reply. `ended`: why no more batches come."""

    batch: int
    runs: list[Run]
    records: memoryview
    results: list[Result]
    stopped: bool
    joined: bool
    void_batch: int
    settings: GroupSettings | None
    command: Command | None
    ended: TroveError | None


def open_consume(connection: Connection, metadata: Metadata) -> Stream:
    """A Consume stream: it takes serialised frames, and `read` returns ConsumeAnswer."""
    return connection.open(_METHOD, consume_answer, metadata=metadata)


def consume_answer(data: bytes | bytearray) -> ConsumeAnswer:
    """Deserialises a ConsumeReply without copying its records."""
    records, rest = split_records(data)
    reply = consumer_pb2.ConsumeReply.FromString(rest)
    runs = [Run(one.queue_id, one.first_offset, one.count, one.attempt, one.receipt) for one in reply.runs]
    results = [
        Result(
            one.settlement_id,
            error_from_wire(one.error) if one.HasField("error") else None,
            {each.offset: error_from_wire(each.error) for each in one.refused},
            one.handle,
        )
        for one in reply.results
    ]
    return ConsumeAnswer(
        reply.batch,
        runs,
        records,
        results,
        reply.stopped,
        reply.joined,
        reply.void_batch,
        settings_from_wire(reply.settings) if reply.HasField("settings") else None,
        _command(reply.command) if reply.HasField("command") else None,
        error_from_wire(reply.ended) if reply.HasField("ended") else None,
    )


def _command(command: consumer_pb2.ConsumeCommand) -> Command:
    return Command(command.nonce, command.consume if command.HasField("consume") else None)


consume_answer.takes_view = True  # type: ignore[attr-defined]  # trovemq_rpc need not copy the message


def start_of(
    filter_type: str, filter_: str, invisible_ms: int | None, hostname: str
) -> consumer_pb2.ConsumeStart:
    """The frame that starts the stream. invisible_ms None: the broker renews the leases."""
    return consumer_pb2.ConsumeStart(
        filter_type=filter_type, filter=filter_, invisible_ms=invisible_ms or 0, hostname=hostname
    )


def settlement(
    settlement_id: int,
    receipt: str,
    offsets: Sequence[int],
    change: Change | None,
    *,
    by_handle: bool = False,
) -> consumer_pb2.Settlement:
    """A settlement of the messages at these rising offsets; `by_handle`: of the one whose handle `receipt`
    is. `change` None: they are acknowledged."""
    if by_handle:
        made = consumer_pb2.Settlement(settlement_id=settlement_id, handle=receipt)
    else:
        made = consumer_pb2.Settlement(
            settlement_id=settlement_id, receipt=receipt, ranges=list(_ranges(offsets))
        )
    if change is not None:
        made.kind, made.invisible_ms, made.suspend = change.kind, change.invisible_ms, change.suspend
        if any(change.reason):
            made.reason.error, made.reason.text, made.reason.returned = change.reason
    return made


def _ranges(offsets: Sequence[int]) -> Iterable[int]:
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return first, len(offsets)
    found: list[int] = []
    end = -1
    for offset in offsets:
        if offset == end:
            found[-1] += 1
        else:
            found += (offset, 1)
        end = offset + 1
    return found


def consume_frame(
    group: str,
    topic: str,
    *,
    start: consumer_pb2.ConsumeStart | None = None,
    credit: tuple[int, int] = (0, 0),
    received_batch: int = 0,
    settlements: Iterable[consumer_pb2.Settlement] = (),
    stop: bool = False,
    leave: bool = False,
    answers: Iterable[CommandAnswer] = (),
) -> bytes:
    """A serialised ConsumeFrame; `credit`: messages (negative to take credit back) and bytes."""
    return consumer_pb2.ConsumeFrame(
        group=group,
        topic=topic,
        start=start,
        credit_messages=credit[0],
        credit_bytes=credit[1],
        received_batch=received_batch,
        settlements=settlements,
        stop=stop,
        leave=leave,
        answers=answers,
    ).SerializeToString()
