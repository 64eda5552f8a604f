"""The values of the table as protobuf messages, for both ends of a connection between brokers.

A message with a kind of entry, or of a format, that this version does not know is refused with STORE_NEWER:
what it lacks could not be stored.
"""

from __future__ import annotations

from typing import Final

from trovemq_broker.cluster_config.entries import (
    NO_GENERATION,
    ORIGIN,
    Entry,
    Generation,
    Kind,
    Position,
    check_mark,
)
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart
from trovemq_broker.cluster_config.table import Head
from trovemq_broker.cluster_config.take_over import CopyStatus
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb

FORMAT: Final = 1
"""Of the entries: the highest that this version knows."""
NAME_SIZE_MAX: Final = 512
HISTORY_MAX: Final = 1_000


def check_format(format_: int, whose: str) -> None:
    """TroveError STORE_NEWER for a format that this version does not know."""
    if format_ > FORMAT:
        what = f"the configuration of {whose} has format {format_}, this broker knows formats up to {FORMAT}"
        raise TroveError(errors.STORE_NEWER, f"{what}: upgrade this broker", format=str(format_))


# --- to protobuf ------------------------------------------------------------------------------------------
def generation_to(value: Generation) -> pb.ConfigGeneration:
    return pb.ConfigGeneration(number=value.number, mark=value.mark)


def position_to(value: Position) -> pb.ConfigPosition:
    return pb.ConfigPosition(generation=generation_to(value.generation), version=value.version)


def head_to(head: Head) -> pb.ConfigHead:
    return pb.ConfigHead(
        cluster=head.cluster,
        owner=head.owner,
        generation=generation_to(head.generation),
        version=head.version,
        digest=head.digest,
        horizon=head.horizon,
        history=[position_to(end) for end in head.history],
        format=FORMAT,
    )


def entry_to(entry: Entry) -> pb.ConfigEntry:
    return pb.ConfigEntry(
        kind=entry.kind,
        name=entry.name,
        id=position_to(entry.id),
        version=position_to(entry.version),
        deleted=entry.deleted,
        settings=dict(entry.settings),
        placement=dict(entry.placement),
        secrets=entry.secrets,
    )


def part_to(part: TablePart | None) -> pb.ConfigPart:
    """None: there is nothing to send."""
    if part is None:
        return pb.ConfigPart(is_current=True)
    return pb.ConfigPart(
        base=None if part.base is None else position_to(part.base),
        head=head_to(part.head),
        number=part.number,
        is_last=part.is_last,
        entries=[entry_to(entry) for entry in part.entries],
    )


def hello_to(hello: Hello) -> pb.WatchConfigRequest:
    return pb.WatchConfigRequest(
        hello=pb.ConfigHello(
            broker=hello.broker,
            store_id=hello.store_id,
            cluster=hello.cluster,
            position=position_to(hello.position),
            digest=hello.digest,
            promised=generation_to(hello.promised),
            format=FORMAT,
        )
    )


def report_to(report: Report) -> pb.WatchConfigRequest:
    return pb.WatchConfigRequest(report=pb.ConfigReport(position=position_to(report.position)))


def copy_to(copy: CopyStatus) -> pb.ConfigCopy:
    return pb.ConfigCopy(broker=copy.broker, head=head_to(copy.head), promised=generation_to(copy.promised))


# --- from protobuf ----------------------------------------------------------------------------------------
def generation_of(message: pb.ConfigGeneration) -> Generation:
    """TroveError REQUEST_ILLEGAL."""
    if not message.number and not message.mark:
        return NO_GENERATION
    return Generation(message.number, check_mark(message.mark))


def position_of(message: pb.ConfigPosition) -> Position:
    """TroveError REQUEST_ILLEGAL."""
    generation = generation_of(message.generation)
    return ORIGIN if generation == NO_GENERATION else Position(generation, message.version)


def head_of(message: pb.ConfigHead) -> Head:
    """TroveError REQUEST_ILLEGAL, STORE_NEWER."""
    check_format(message.format, f"broker {message.owner}")
    if len(message.history) > HISTORY_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"a head has more than {HISTORY_MAX} generations")
    return Head(
        _name(message.cluster),
        _name(message.owner),
        generation_of(message.generation),
        message.version,
        _name(message.digest),
        message.horizon,
        tuple(position_of(end) for end in message.history),
    )


def entry_of(message: pb.ConfigEntry) -> Entry:
    """TroveError REQUEST_ILLEGAL, STORE_NEWER."""
    if message.kind not in Kind.__members__.values():
        what = f"{message.kind!a:.80} is a kind of entry that this broker does not know: upgrade it"
        raise TroveError(errors.STORE_NEWER, what)
    return Entry(
        Kind(message.kind),
        _name(message.name),
        position_of(message.id),
        position_of(message.version),
        dict(message.settings),
        dict(message.placement),
        message.secrets,
        message.deleted,
    )


def part_of(message: pb.ConfigPart) -> TablePart | None:
    """None: the owner has nothing to send. TroveError REQUEST_ILLEGAL, STORE_NEWER."""
    if message.is_current:
        return None
    return TablePart(
        position_of(message.base) if message.HasField("base") else None,
        head_of(message.head),
        message.number,
        message.is_last,
        tuple(entry_of(entry) for entry in message.entries),
    )


def hello_of(message: pb.ConfigHello) -> Hello:
    """TroveError REQUEST_ILLEGAL, STORE_NEWER."""
    if not message.broker or not message.store_id:
        raise TroveError(errors.REQUEST_ILLEGAL, "a hello names its broker and its store")
    if not message.format:
        raise TroveError(errors.REQUEST_ILLEGAL, "a hello names the format that its broker knows")
    return Hello(
        _name(message.broker),
        _name(message.store_id),
        _name(message.cluster),
        position_of(message.position),
        _name(message.digest),
        generation_of(message.promised),
    )


def copy_of(message: pb.ConfigCopy) -> CopyStatus:
    """TroveError REQUEST_ILLEGAL, STORE_NEWER."""
    return CopyStatus(_name(message.broker), head_of(message.head), generation_of(message.promised))


def _name(text: str) -> str:
    if len(text) > NAME_SIZE_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"a name has more than {NAME_SIZE_MAX} characters")
    return text
