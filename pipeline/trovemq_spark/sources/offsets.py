"""Offsets of queues in options: RocketMQ's JSON, with Kafka's words and marks.

    {"TOPIC": {"BROKER": {"0": 23, "1": -2}}}      where to begin or to end, exclusive
    {"TOPIC": {"BROKER": [0, 1]}}                  which queues (option assign)
    earliest | latest                              all queues

-2 is the queue's earliest offset, -1 the offset after its latest message. A queue that is not named begins
at its earliest and ends at its latest.

Beside its queues a broker may have the topic's identity there, as checkpoints have it: it changes when the
topic is deleted and recreated, and the offsets are then those of another topic.

    {"TOPIC": {"BROKER": {"0": 23, "topicIdentity": 73400320}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trovemq_spark.option_kinds import Kind

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_MARK: Final = -2
LATEST_MARK: Final = -1
QUEUE_ID_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1
IDENTITY_KEY: Final = "topicIdentity"
_FORM: Final = '{"TOPIC": {"BROKER": {"0": 23}}}'
_ASSIGN_FORM: Final = '{"TOPIC": {"BROKER": [0, 1]}}'


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """A queue of the cluster."""

    topic: str
    broker: str
    queue_id: int


Identities = dict[tuple[str, str], int]
"""The identity of a topic on a broker, by (topic, broker); missing ones are not known."""
NO_IDENTITIES: Final[Identities] = {}


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offsets of a query, and which topics they are of. Checkpoints of earlier versions have no
    identities."""

    offsets: dict[Queue, int]
    identities: Identities

    @classmethod
    def from_json(cls, document: object) -> Positions:
        """The inverse of to_json. ValueError has the expected form."""
        return cls(offsets_from_json(document), identities_from_json(document))

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """The JSON form above, ordered by topic, broker and queue."""
        document = offsets_to_json(self.offsets)
        for (topic, broker), identity in self.identities.items():
            if broker in document.get(topic, ()):
                document[topic][broker][IDENTITY_KEY] = identity
        return document

    def same_topic(self, queue: Queue, identity: int | None) -> bool:
        """Whether the offset of the queue is one of the topic with that identity, as far as is known."""
        own = self.identities.get((queue.topic, queue.broker))
        return own is None or identity is None or own == identity


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """`default`, EARLIEST_MARK or LATEST_MARK, for all queues except those in `queues`. Picklable."""

    default: int
    queues: Mapping[Queue, int]
    identities: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def of(self, queue: Queue) -> int:
        """The queue's offset, or a mark."""
        return self.queues.get(queue, self.default)

    @property
    def is_named(self) -> bool:
        """Whether the option names queues."""
        return bool(self.queues)


ALL_EARLIEST: Final = QueueOffsets(EARLIEST_MARK, {})
ALL_LATEST: Final = QueueOffsets(LATEST_MARK, {})


def parse_starting_offsets(text: str) -> QueueOffsets:
    """Parses the option; a queue that the JSON does not name begins at its earliest. ValueError has the
    expected form."""
    return _parse(text, EARLIEST_MARK)


def parse_ending_offsets(text: str) -> QueueOffsets:
    """Parses the option; a queue that the JSON does not name ends at its latest. ValueError has the expected
    form."""
    return _parse(text, LATEST_MARK)


def parse_assignment(text: str) -> frozenset[Queue]:
    """The queues of option assign. ValueError has the expected form."""
    queues: list[Queue] = []
    for topic, broker, ids in _brokers(_document(text, _ASSIGN_FORM), _ASSIGN_FORM):
        if not isinstance(ids, list) or not ids:
            raise ValueError(f"{_ASSIGN_FORM}: a list of queue ids below broker {broker!r}")
        queues += [Queue(topic, broker, _queue_id(value, _ASSIGN_FORM)) for value in ids]
    if not queues or len(set(queues)) < len(queues):
        raise ValueError(f"{_ASSIGN_FORM}: each queue once, and one at least")
    return frozenset(queues)


def offsets_to_json(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The JSON form above, ordered by topic, broker and queue."""
    document: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        document.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[
            queue
        ]
    return document


def offsets_from_json(document: object) -> dict[Queue, int]:
    """The inverse of offsets_to_json. ValueError has the expected form."""
    offsets: dict[Queue, int] = {}
    for topic, broker, queues in _brokers(document, _FORM):
        if not isinstance(queues, dict):
            raise ValueError(f"{_FORM}: an object of queues below broker {broker!r} of topic {topic!r}")
        for key, offset in queues.items():
            if key == IDENTITY_KEY:
                continue
            queue = Queue(topic, broker, _queue_id(key, _FORM))
            if queue in offsets:
                raise ValueError(f"{_FORM}: queue {queue.queue_id} of {topic!r} once")
            if type(offset) is not int or not EARLIEST_MARK <= offset <= OFFSET_MAX:
                raise ValueError(
                    f"{_FORM}: an offset from 0 on, -1 (latest) or -2 (earliest), not {offset!r}"
                )
            offsets[queue] = offset
    return offsets


def identities_from_json(document: object) -> Identities:
    """The identities in the JSON form above. ValueError has the expected form."""
    identities: Identities = {}
    for topic, broker, queues in _brokers(document, _FORM):
        if isinstance(queues, dict) and IDENTITY_KEY in queues:
            identity = queues[IDENTITY_KEY]
            if type(identity) is not int or not 0 <= identity <= OFFSET_MAX:
                raise ValueError(f"{_FORM}: {IDENTITY_KEY} from 0 on, not {identity!r}")
            identities[topic, broker] = identity
    return identities


def _parse(text: str, default: int) -> QueueOffsets:
    word = text.strip().lower()
    if word == EARLIEST:
        return ALL_EARLIEST
    if word == LATEST:
        return ALL_LATEST
    document = _document(text, f"earliest, latest or {_FORM}")
    return QueueOffsets(default, offsets_from_json(document), identities_from_json(document))


def _document(text: str, form: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        raise ValueError(form) from None
    if not isinstance(document, dict) or not document:
        raise ValueError(form)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("JSON in which no name is given twice")
    return document


def _brokers(document: object, form: str) -> Iterator[tuple[str, str, Any]]:
    """(topic, broker, the value below them)"""
    if not isinstance(document, dict):
        raise ValueError(form)
    for topic, brokers in document.items():
        if not isinstance(brokers, dict) or any(type(below) is int for below in brokers.values()):
            raise ValueError(f"{form}: the broker's name between topic {topic!r} and its queues")
        for broker, below in brokers.items():
            yield topic, broker, below


def _queue_id(value: object, form: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) > QUEUE_ID_MAX:
        raise ValueError(f"{form}: a queue id from 0 to {QUEUE_ID_MAX}, not {value!r}")
    return int(text)


STARTING_OFFSETS: Final = Kind("offsets", parse_starting_offsets)
ENDING_OFFSETS: Final = Kind("offsets", parse_ending_offsets)
ASSIGNMENT: Final = Kind("queues", parse_assignment)
