"""The history of a cluster's messages, and its check. No processes, no clock.

A key names a message: `TOPIC.LIFE/STREAM/NUMBER`. The life counts the creations of the topic. The numbers
of a stream rise, and of an ordered stream (a message group) a number is sent when those before it are
acknowledged.

| finding | meaning |
|---|---|
| lost | acknowledged, and on no broker any more |
| lost_by_removal | acknowledged on a removed broker, and a group had not consumed it |
| unconsumed | acknowledged, and a group never received it |
| reordered | a group received an ordered message for the first time after a later one of the same queue |
| reordered_between | the same, of two queues or brokers, and sent after the group was made |
| copies | it is stored more often than its sends of unknown outcome allow |
| redelivered | delivered again although it was acknowledged, and its broker was not disturbed |
| undeleted | a message of a deleted topic, in a topic that was made again |
| unknown_message | no such message was sent |
| topic_back, group_back | a broker has it, and it was deleted |
| lacking | a broker lacks a topic or group |
| differs | a broker has a topic or group with other settings |
| routes | the nameserver lists other brokers than those that run |

At-least-once allows duplicates: those after a disturbance are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

BEGUN: Final = "begun"
"""The attempt has no outcome yet; the message may be received before it has."""
STORED: Final = "stored"
UNKNOWN: Final = "unknown"
REFUSED: Final = "refused"

FINDINGS: Final = (
    *("lost", "lost_by_removal", "unconsumed", "reordered", "reordered_between", "copies", "redelivered"),
    *("undeleted", "unknown_message", "topic_back", "group_back", "lacking", "differs", "routes"),
)


class Key(NamedTuple):
    topic: str
    life: int
    stream: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}.{self.life}/{self.stream}/{self.number}"


def read_key(text: str) -> Key:
    """Raises ValueError."""
    name, stream, number = text.split("/")
    topic, _, life = name.rpartition(".")
    return Key(topic, int(life), stream, int(number))


class QueuePlace(NamedTuple):
    broker: str
    queue_id: int
    queue_offset: int


# --- events, in the order in which the program saw them -----------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicMade:
    topic: str
    life: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic: str


@dataclass(frozen=True, slots=True)
class GroupMade:
    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    group: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one attempt. `broker`: where it is stored, if it is acknowledged."""

    key: Key
    outcome: str
    broker: str = ""


@dataclass(frozen=True, slots=True)
class Received:
    group: str
    key: Key
    place: QueuePlace


@dataclass(frozen=True, slots=True)
class Consumed:
    """The broker has confirmed the acknowledgement."""

    group: str
    key: Key
    place: QueuePlace


@dataclass(frozen=True, slots=True)
class Disturbed:
    """The broker was killed, stopped or frozen: afterwards it may deliver acknowledged messages again."""

    broker: str


@dataclass(frozen=True, slots=True)
class Removed:
    broker: str


Event = TopicMade | TopicDeleted | GroupMade | GroupDeleted | Sent | Received | Consumed | Disturbed | Removed


@dataclass(frozen=True, slots=True)
class Holdings:
    """One broker at the end: keys with their places, topics and groups with their settings."""

    stored: Sequence[tuple[Key, QueuePlace]] = ()
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """The topics and groups that a broker should have, with their settings. `elsewhere`: topics that it may
    have, too, because they have lain there."""

    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()


class Finding(NamedTuple):
    kind: str
    text: str


@dataclass(slots=True)
class Report:
    """`counts`: messages, acknowledged ones, sends of unknown outcome, deliveries, duplicates."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def of(self, kind: str) -> list[str]:
        return [one.text for one in self.findings if one.kind == kind]


@dataclass(slots=True)
class _Group:
    topic: str
    life: int
    gone_before: frozenset[str]
    older: dict[str, int]  # by stream: the highest number that was sent before it was made
    received: set[Key] = field(default_factory=set)
    delivered: dict[tuple[Key, QueuePlace], int] = field(default_factory=dict)  # number of the last event
    consumed: set[tuple[Key, QueuePlace]] = field(default_factory=set)
    latest: dict[str, tuple[int, QueuePlace]] = field(default_factory=dict)  # by stream: the highest number


class _History:
    """The events, one after the other."""

    def __init__(self) -> None:
        self.report = Report()
        self.lives: dict[str, int] = {}
        self.live: dict[str, bool] = {}  # topics, and whether they are ordered
        self.groups: dict[str, _Group] = {}
        self.sent: dict[Key, str] = {}  # where it is acknowledged, or ""
        self.unknown: Counter[Key] = Counter()
        self.removed: set[str] = set()
        self._disturbed: dict[str, int] = {}
        self._at = 0

    def add(self, event: Event) -> None:
        self._at += 1
        match event:
            case TopicMade(topic, life, ordered):
                self.lives[topic], self.live[topic] = life, ordered
            case TopicDeleted(topic):
                del self.live[topic]
                self.groups = {name: one for name, one in self.groups.items() if one.topic != topic}
            case GroupMade(group, topic):
                life = self.lives[topic]
                keys = sorted(key for key in self.sent if key[:2] == (topic, life))
                older = {key.stream: key.number for key in keys}
                self.groups[group] = _Group(topic, life, frozenset(self.removed), older)
            case GroupDeleted(group):
                self.groups.pop(group, None)
            case Sent(key, outcome, broker):
                self._sent(key, outcome, broker)
            case Received(group, key, place):
                if group in self.groups:
                    self._received(group, self.groups[group], key, place)
            case Consumed(group, key, place):
                if group in self.groups:
                    self.groups[group].consumed.add((key, place))
            case Disturbed(broker):
                self._disturbed[broker] = self._at
            case Removed(broker):
                self._removed(broker)

    def find(self, kind: str, text: str) -> None:
        assert kind in FINDINGS, kind
        self.report.findings.append(Finding(kind, text))

    def _sent(self, key: Key, outcome: str, broker: str) -> None:
        self.sent.setdefault(key, "")
        if outcome == STORED:
            self.sent[key] = broker
        self.unknown[key] += outcome == UNKNOWN

    def _received(self, name: str, group: _Group, key: Key, place: QueuePlace) -> None:
        where = f"{key} at {place.broker} queue {place.queue_id} offset {place.queue_offset}, by {name}"
        self.report.counts["deliveries"] += 1
        if key not in self.sent:
            self.find("unknown_message", where)
        elif key.life != self.lives[key.topic]:
            self.find("undeleted", where)
        # After a disturbance an acknowledgement is sent again while the message is delivered again.
        before = group.delivered.get((key, place), 0)
        disturbed = self._disturbed.get(place.broker, 0)
        if (key, place) in group.consumed and disturbed < before:
            self.find(
                "redelivered", f"{where}: events {disturbed} disturbed, {before} before, {self._at} again"
            )
        group.delivered[key, place] = self._at
        if key in group.received:
            self.report.counts["duplicates"] += 1
            return
        group.received.add(key)
        if not self.live.get(key.topic):
            return
        number, latest = group.latest.get(key.stream, (-1, place))
        text = f"{where}: after {number} at {latest.broker} queue {latest.queue_id}"
        if key.number > number:
            group.latest[key.stream] = (key.number, place)
        elif latest[:2] == place[:2]:
            self.find("reordered", text)
        elif key.number > group.older.get(key.stream, -1):
            self.find("reordered_between", text)

    def _removed(self, broker: str) -> None:
        self.removed.add(broker)
        for name, group in self.groups.items():
            for key in self.acknowledged(group.topic):
                if self.sent[key] == broker and key not in group.received:
                    self.find("lost_by_removal", f"{key} of {broker}, which {name} had not consumed")

    def acknowledged(self, topic: str) -> Iterator[Key]:
        """The acknowledged messages of the topic's present life."""
        life = self.lives[topic]
        return (key for key, broker in self.sent.items() if broker and key[:2] == (topic, life))


def check(
    events: Iterable[Event],
    held: Mapping[str, Holdings],
    routed: Iterable[str],
    expected: Mapping[str, Expected],
) -> Report:
    """Returns the findings. `held`: the brokers that run, with everything they have. `routed`: those that the
    nameserver lists. `expected`: by broker."""
    history = _History()
    for event in events:
        history.add(event)
    _check_messages(history, held)
    _check_holdings(history, held, expected)
    if set(routed) != set(held):
        history.find("routes", f"listed: {sorted(routed)}, running: {sorted(held)}")
    counts = history.report.counts
    counts["messages"] = len(history.sent)
    counts["acknowledged"] = sum(map(bool, history.sent.values()))
    counts["unknown"] = history.unknown.total()
    return history.report


def _check_messages(history: _History, held: Mapping[str, Holdings]) -> None:
    places: dict[Key, set[QueuePlace]] = defaultdict(set)
    for holdings in held.values():
        for key, place in holdings.stored:
            places[key].add(place)
    for key, stored in places.items():
        if key not in history.sent:
            history.find("unknown_message", f"{key} is stored at {sorted(stored)}")
        elif key.topic in history.live and key.life != history.lives[key.topic]:
            history.find("undeleted", f"{key} is stored at {sorted(stored)}")
        if len(stored) > 1 + history.unknown[key]:
            history.find("copies", f"{key} is stored at {sorted(stored)}, {history.unknown[key]} in doubt")
    for topic in history.live:
        for key in history.acknowledged(topic):
            broker = history.sent[key]
            if broker not in history.removed and key not in places:
                history.find("lost", f"{key}, acknowledged by {broker}")
    for name, group in history.groups.items():
        for key in history.acknowledged(group.topic):
            if history.sent[key] not in group.gone_before and key not in group.received:
                history.find("unconsumed", f"{key}, acknowledged by {history.sent[key]}, by {name}")


def unconsumed(events: Iterable[Event]) -> int:
    """How many deliveries are still to come: of acknowledged messages to groups."""
    history = _History()
    for event in events:
        history.add(event)
    _check_messages(history, {})
    return len(history.report.of("unconsumed"))


def _check_holdings(
    history: _History, held: Mapping[str, Holdings], expected: Mapping[str, Expected]
) -> None:
    for broker, holdings in held.items():
        of_broker = expected[broker]
        for noun, has, wanted, others in (
            ("topic", holdings.topics, of_broker.topics, of_broker.elsewhere),
            ("group", holdings.groups, of_broker.groups, frozenset()),
        ):
            for name in sorted(has.keys() - wanted.keys() - others):
                history.find(f"{noun}_back", f"{noun} {name} is on {broker}")
            for name in sorted(wanted.keys() - has.keys()):
                history.find("lacking", f"{broker} lacks {noun} {name}")
            for name in sorted(wanted.keys() & has.keys()):
                if has[name] != wanted[name]:
                    history.find("differs", f"{noun} {name}: {has[name]} on {broker}, not {wanted[name]}")
