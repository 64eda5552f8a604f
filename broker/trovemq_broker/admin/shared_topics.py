"""Topics of the cluster's configuration: the checks of a change, and the change of the table.

A topic lies on the brokers of its placement. A topic that this broker has and the table lacks (made before
the broker joined) is this broker's own: it is altered and deleted here alone. The cluster adopts it by
its creation with the same settings on the brokers that have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_broker.admin.config_texts import topic_of, topic_texts
from trovemq_broker.admin.shared_creators import CreationsWaiting
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Entry, Kind
from trovemq_broker.cluster_config.owner import ChangeResult
from trovemq_broker.cluster_config.shared import SharedConfig
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.placements import check_placement
from trovemq_store.topics.config_marks import config_id
from trovemq_store.topics.names import check_topic_name, is_system_topic
from trovemq_store.topics.topics import (
    NewTopic,
    TopicConfig,
    TopicTable,
    altered_topic,
    check_queue_count,
    new_topic,
)

NO_OPTIONS: Final[Mapping[str, str]] = {}
NO_PLACEMENT: Final[Mapping[str, int]] = {}
_TAKEN_OVER: Final = ("creator", "perm")
"""Kept of a topic that the cluster adopts."""


@dataclass(frozen=True, slots=True)
class ChangedTopic:
    """An acknowledged change. `config`: a topic's settings, with the most queues that it has on a broker;
    `placement`: queues by broker; of a deleted topic those that it had, with 0 for a broker where it only
    had messages."""

    config: TopicConfig
    placement: Mapping[str, int]
    result: ChangeResult


class SharedTopics:
    """`topics`: those of this broker. `draining()`: the brokers that ask for no new messages. `holding()`:
    the other brokers that have the topic, as the routes say."""

    def __init__(
        self,
        config: SharedConfig,
        broker: str,
        topics: TopicTable,
        draining: Callable[[], Collection[str]],
        holding: Callable[[str], Collection[str]] = lambda _topic: (),
    ) -> None:
        self._config = config
        self._broker = broker
        self._topics = topics
        self._draining = draining
        self._holding = holding
        self._waiting = CreationsWaiting(Kind.TOPIC)

    def find(self, name: str) -> TopicConfig | None:
        """The table's topic; None if it has none, or the configuration is this broker's own."""
        entry = self._entry(name)
        return None if entry is None else _config_of(entry)

    def placement(self, name: str) -> Mapping[str, int]:
        """The queues of the table's topic by broker; nothing if there is none."""
        entry = self._entry(name)
        return NO_PLACEMENT if entry is None else entry.placement

    def names(self) -> list[str]:
        """The table's topics."""
        table = self._config.table if self._config.is_shared else ()
        return [one.name for one in table if one.kind is Kind.TOPIC and not one.deleted]

    def _entry(self, name: str) -> Entry | None:
        return self._config.table.live(Kind.TOPIC, name) if self._config.is_shared else None

    def is_own(self, name: str) -> bool:
        """Whether the topic is this broker's own, and no part of the cluster's configuration."""
        return self._entry(name) is None and name in self._topics

    def check_free(self, wanted: NewTopic, brokers: Sequence[str]) -> None:
        """TroveError TOPIC_EXISTS if this broker has such a topic with other settings, which the table
        lacks. The owner checks the rest: this broker's table may lack brokers, or there is none yet."""
        here = brokers or ([] if self._broker in self._draining() else [self._broker])
        self._not_own(wanted, dict.fromkeys(here, wanted.queue_count))

    async def create(self, wanted: NewTopic, brokers: Sequence[str]) -> ChangedTopic:
        """Creates the topic with its queues on each of the brokers; without brokers on all that are not
        drained. TroveError TOPIC_EXISTS, TOPIC_ILLEGAL, REQUEST_ILLEGAL, MESSAGE_TYPE_UNSUPPORTED,
        TOPIC_OPTION_ILLEGAL, BROKER_NOT_FOUND, BROKER_DRAINED, LIMIT_EXCEEDED, and those of
        SharedConfig.change."""

        def make(table: ConfigTable) -> Sequence[ConfigChange]:
            check_topic_name(wanted.name)
            if (there := table.live(Kind.TOPIC, wanted.name)) is not None:
                raise _exists(there)
            config = new_topic(wanted, {*self._topics.reserved, *table.members()})
            self._waiting.check(table, creation, wanted.name, wanted.creator)
            placement = self._placed(table, wanted, brokers)
            own = self._not_own(wanted, placement)
            settings = topic_texts(own or config)
            change = ConfigChange(
                ChangeKind.CREATE, Kind.TOPIC, wanted.name, settings=settings, placement=placement
            )
            return [change]

        with self._waiting.one() as creation:
            (result,) = await self._config.change(make)
        return _changed(result)

    async def alter(
        self,
        name: str,
        *,
        queue_count: int | None,
        message_type: str | None,
        options: Mapping[str, str] = NO_OPTIONS,
        placement: Mapping[str, int] = NO_PLACEMENT,
        queues_on: Mapping[str, int] = NO_PLACEMENT,
    ) -> ChangedTopic:
        """`queue_count`: on each broker that has it; `placement`: instead, the queues of each broker, of
        which those with 0, and those that are not named, take no new messages; `queues_on`: of these brokers,
        while all others keep the queues that they have then. The queues of a FIFO topic
        change while it is closed, or where the change names the option `writes`, too: the caller accepts that
        message groups lose their order. TroveError TOPIC_NOT_FOUND, FIFO_TOPIC_OPEN, TOPIC_ILLEGAL,
        REQUEST_ILLEGAL, MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL, BROKER_NOT_FOUND, BROKER_DRAINED, and
        those of SharedConfig.change."""

        def make(table: ConfigTable) -> Sequence[ConfigChange]:
            entry = _required(table, name)
            config = _config_of(entry)
            after = altered_topic(config, message_type=message_type, options=options)
            placed = dict(entry.placement)
            if placement or queues_on:
                if queue_count is not None or (placement and queues_on):
                    text = "give one of queue_count, placement and queues_on"
                    raise _illegal(name, text, "placement")
                placed = self._replaced(table, entry, placement or {**entry.placement, **queues_on})
            elif queue_count is not None:
                for broker, queues in placed.items():
                    check_queue_count(f"{name} on {broker}", queue_count, queues)
                placed = dict.fromkeys(placed, queue_count)
            if placed != entry.placement and "writes" not in options:
                _check_order(config)
            change = ConfigChange(
                ChangeKind.ALTER, Kind.TOPIC, name, entry.version, topic_texts(after), placed
            )
            return [change]

        (result,) = await self._config.change(make)
        return _changed(result)

    async def delete(self, name: str) -> ChangedTopic:
        """TroveError TOPIC_NOT_FOUND, and those of SharedConfig.change."""
        found: list[Entry] = []
        own = [self._broker] if name in self._topics else []
        former = dict.fromkeys([*own, *self._holding(name)], 0)  # brokers from which it was spread to others

        def make(table: ConfigTable) -> Sequence[ConfigChange]:
            found.append(_required(table, name))
            return [ConfigChange(ChangeKind.DELETE, Kind.TOPIC, name, found[-1].version)]

        (result,) = await self._config.change(make)
        return ChangedTopic(_config_of(found[-1]), {**former, **found[-1].placement}, result)

    # --- placement ------------------------------------------------------------------------------------
    def _placed(self, table: ConfigTable, wanted: NewTopic, brokers: Sequence[str]) -> dict[str, int]:
        drained = set(self._draining())
        if not brokers:
            brokers = [name for name in table.members() if name not in drained]
            if not brokers:
                text = "all brokers of the cluster are drained: trovemq broker undrain NAME"
                raise TroveError(errors.BROKER_DRAINED, text)
        check_placement(wanted.name, brokers)
        self._check_brokers(table, brokers)
        return dict.fromkeys(brokers, wanted.queue_count)

    def _replaced(self, table: ConfigTable, entry: Entry, placement: Mapping[str, int]) -> dict[str, int]:
        placed = {broker: queues for broker, queues in placement.items() if queues}
        if not placed:
            raise _illegal(entry.name, "it needs queues on a broker", "placement")
        for broker, queues in placed.items():
            check_queue_count(f"{entry.name} on {broker}", queues, max(1, entry.queues_on(broker)))
        check_placement(entry.name, placed)
        self._check_brokers(table, [broker for broker in placed if broker not in entry.placement])
        return placed

    def _check_brokers(self, table: ConfigTable, brokers: Iterable[str]) -> None:
        members, drained = set(table.members()), set(self._draining())
        for broker in brokers:
            if broker not in members:
                text = f"broker {broker[:80]!a} is not one of the cluster: {', '.join(sorted(members))}"
                raise TroveError(errors.BROKER_NOT_FOUND, text, broker=broker[:80])
            if broker in drained:
                text = f"broker {broker} is drained, and takes no new topics"
                raise TroveError(errors.BROKER_DRAINED, text, broker=broker)

    def _not_own(self, wanted: NewTopic, placement: Mapping[str, int]) -> TopicConfig | None:
        """This broker's own topic of that name, which the change takes in. TroveError TOPIC_EXISTS if it has
        other settings."""
        own = self._topics.get(wanted.name)
        if own is None or is_system_topic(wanted.name) or config_id(own.attributes) is not None:
            return None
        if _compared(own) == _compared(new_topic(wanted)) and own.queue_count == placement.get(self._broker):
            return own
        raise TroveError(
            errors.TOPIC_EXISTS,
            f"broker {self._broker} has a topic {wanted.name} with {own.queue_count} queues, type "
            f"{own.message_type}, that is not in the cluster's configuration. Take it in with its settings "
            f"(trovemq topic adopt {wanted.name}), or use another name",
            topic=wanted.name,
            broker=self._broker,
        )


def _config_of(entry: Entry) -> TopicConfig:
    return topic_of(entry.name, entry.settings, max(entry.placement.values(), default=0))


def _check_order(topic: TopicConfig) -> None:
    if topic.message_type == "FIFO" and topic.options.writes == "open":
        text = (
            f"FIFO topic {topic.name} takes messages, and keeps its queues meanwhile:"
            f" trovemq topic spread {topic.name} closes it first"
        )
        raise TroveError(errors.FIFO_TOPIC_OPEN, text, topic=topic.name)


def _changed(result: ChangeResult) -> ChangedTopic:
    return ChangedTopic(_config_of(result.entry), result.entry.placement, result)


def _required(table: ConfigTable, name: str) -> Entry:
    entry = table.live(Kind.TOPIC, name)
    if entry is None:
        text = f"topic {name[:200]!r} is not in the cluster's configuration"
        raise TroveError(errors.TOPIC_NOT_FOUND, text, topic=name[:200])
    return entry


def _exists(entry: Entry) -> TroveError:
    """With the topic as the owner has it: a follower that has passed the creation on may not have it yet."""
    config = _config_of(entry)
    return TroveError(
        errors.TOPIC_EXISTS,
        f"topic {entry.name} exists already",
        topic=entry.name,
        queue_count=str(config.queue_count),
        message_type=config.message_type,
        placement=json.dumps(dict(entry.placement)),
    )


def _illegal(name: str, what: str, field: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, f"topic {name}: {what}", field=field)


def _compared(config: TopicConfig) -> Mapping[str, str]:
    """The settings that a user gives a new topic."""
    return {name: text for name, text in topic_texts(config).items() if name not in _TAKEN_OVER}
