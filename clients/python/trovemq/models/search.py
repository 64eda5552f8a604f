"""The conditions and the results of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trovemq.models.replica import ReplicaLag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message
from trovemq_proto.records.properties import not_of

FIELDS = ("key", "message_id", "tag", "property")
VALUE_SIZE_MAX = 32_767


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on a message; conditions are combined by `&` and `|`.

        Where.key_prefix("N14") & (Where.tag("late") | Where.property("carrier", "UA"))

    Attributes:
        kind: `key`, `message_id`, `tag`, `property`, or `all` or `any` for `parts`.
        value: The whole value, or a prefix.
        is_prefix: Whether `value` is a prefix.
        name: The name of a property.
        parts: The conditions that are combined.
    """

    kind: str
    value: str = ""
    is_prefix: bool = False
    name: str = ""
    parts: tuple[Where, ...] = ()

    @classmethod
    def key(cls, value: str) -> Where:
        """One of the message's keys is `value`."""
        return cls("key", value)

    @classmethod
    def key_prefix(cls, value: str) -> Where:
        """One of the message's keys begins with `value`."""
        return cls("key", value, is_prefix=True)

    @classmethod
    def message_id(cls, value: str) -> Where:
        """The message's id is `value`."""
        return cls("message_id", value)

    @classmethod
    def message_id_prefix(cls, value: str) -> Where:
        """The message's id begins with `value`."""
        return cls("message_id", value, is_prefix=True)

    @classmethod
    def tag(cls, value: str) -> Where:
        """The message's tag is `value`."""
        return cls("tag", value)

    @classmethod
    def property(cls, name: str, value: str) -> Where:
        """A property that the topic declares as indexed (`--indexed-property`) is `value`."""
        return cls("property", value, name=name)

    @classmethod
    def property_prefix(cls, name: str, value: str) -> Where:
        """Such a property begins with `value`."""
        return cls("property", value, is_prefix=True, name=name)

    @classmethod
    def all_of(cls, *parts: Where) -> Where:
        """Messages that match all conditions; without conditions every message."""
        return cls("all", parts=parts)

    @classmethod
    def any_of(cls, *parts: Where) -> Where:
        """At least one of them."""
        return cls("any", parts=parts)

    def __and__(self, other: Where) -> Where:
        return Where.all_of(*self._flat("all"), *other._flat("all"))

    def __or__(self, other: Where) -> Where:
        return Where.any_of(*self._flat("any"), *other._flat("any"))

    def _flat(self, kind: str) -> tuple[Where, ...]:
        return self.parts if self.kind == kind else (self,)


EVERY_MESSAGE = Where.all_of()


def check_where(where: object) -> Where:
    """The condition. Raises TroveError REQUEST_ILLEGAL for anything else."""
    if not isinstance(where, Where):
        text = f"where must be a condition, such as Where.key('k'), {not_of(where)}"
        raise TroveError(errors.REQUEST_ILLEGAL, text, argument="where")
    return where


def combined(
    where: Where | None,
    *,
    key: str | Sequence[str] | None = None,
    key_prefix: str | Sequence[str] | None = None,
    message_id: str | Sequence[str] | None = None,
    message_id_prefix: str | Sequence[str] | None = None,
    tag: str | Sequence[str] | None = None,
    properties: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    match: str = "all",
) -> Where:
    """All given conditions as one. Raises TroveError REQUEST_ILLEGAL."""
    parts = [] if where is None else [check_where(where)]
    for make, given in (
        (Where.key, key),
        (Where.key_prefix, key_prefix),
        (Where.message_id, message_id),
        (Where.message_id_prefix, message_id_prefix),
        (Where.tag, tag),
    ):
        parts += [make(value) for value in ([given] if isinstance(given, str) else given or ())]
    pairs = properties.items() if isinstance(properties, Mapping) else properties or ()
    parts += [Where.property(name, value) for name, value in pairs]
    if match not in ("all", "any"):
        raise TroveError(errors.REQUEST_ILLEGAL, f"match={match!r} is neither 'all' nor 'any'")
    if len(parts) == 1:
        return parts[0]
    return Where.any_of(*parts) if match == "any" and parts else Where.all_of(*parts)


@dataclass(frozen=True, slots=True)
class SearchPart:
    """How a broker serves a part of its log.

    Attributes:
        broker: The broker.
        index: The index that is read: a term, `location` (every message of the topic), or the log itself.
        begin: The part's beginning, a physical offset.
        end: Its end.
        entries: Entries of the index that will be read; 0 for a scan, which reads the part's bytes.
        at_least: Whether there may be more entries.
    """

    broker: str
    index: str
    begin: int
    end: int
    entries: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """One page of a search.

    Attributes:
        messages: In the order of their store times, newest first unless requested otherwise.
        complete: No other message matches, on any broker.
        cursor: Where to continue; None when complete.
        explain: The plan of the search, made before it ran; from the last call to each broker.
        entries: Entries of indexes that were read.
        scanned_bytes: Bytes of the log that were read because no index had them yet.
        lag_bytes: Bytes of the log that the indexes lack now, of all brokers.
        unreachable: Brokers that have the topic and did not answer; `complete` is then False.
        notes: Remarks of the brokers, for example on a damaged record that was left out.
        replica: The lag of the replica that answered; None from a leader.
    """

    messages: tuple[Message, ...]
    complete: bool
    cursor: str | None
    explain: tuple[SearchPart, ...] = ()
    entries: int = 0
    scanned_bytes: int = 0
    lag_bytes: int = 0
    unreachable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    replica: ReplicaLag | None = None
