"""Topics, consumer groups and their offsets, statistics: on every broker, or on one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from trovemq._admin.adoption import adopt, is_outside
from trovemq._admin.brokers import Brokers
from trovemq._admin.config import Config
from trovemq._admin.creations import Created, found_there, stated_topic, topics_created
from trovemq._admin.groups import Groups, reset_target
from trovemq._admin.places import with_places
from trovemq._admin.replicas import Replicas
from trovemq._admin.spreading import SETTLE_S, Spreading, left_on
from trovemq._admin.stores import Stores
from trovemq._admin.users import Quotas, Rules, Users
from trovemq._common.arguments import check_number, check_numbers, check_text, check_texts
from trovemq._net.all_brokers import ask_brokers, ask_units
from trovemq._net.configurations import Unit, units_of, units_with
from trovemq._net.connections import ConnectionPool
from trovemq.models.all_brokers import BrokerAnswers, TopicDeletion
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerStatistics,
    ClusterState,
    OffsetReset,
    TopicDescription,
    TopicSpread,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.placements import check_placement
from trovemq_proto.records.properties import not_of

# How long a changed topic may take to reach the routes that this client follows.
ROUTE_WAIT_SECONDS = 3.0
QUEUE_COUNT_MAX = 1024


class Admin:
    """Administration; `Client.admin`. `groups` has the calls for consumer groups, `store` those for stores,
    `brokers` those for broker processes, `config` those for the cluster's configuration as a whole,
    `replicas` those for replica groups, `users` and `rules` those for access, `quotas` those for quotas.

    If `broker` is None, every live broker is called, or for one queue the broker that has it. A broker that
    is away hides no other: the result names it, as `missing` of a read and as `pending` of a change. Of
    brokers that share the cluster's configuration (`BrokerInfo.config`) one is called for a change of it, and
    all make the change; CONFIG_OWNER_UNREACHABLE if their owner is away. All calls raise TroveError: if no
    broker answers, and for every other failure of one, where changes on other brokers stay. A cancelled
    caller no longer waits, but the change may still be made.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self.brokers = Brokers(pool)
        self.config = Config(pool)
        self.groups = Groups(pool)
        self.replicas = Replicas(pool)
        self.store = Stores(pool)
        self.users = Users(pool)
        self.rules = Rules(pool)
        self.quotas = Quotas(pool)

    # --- topics ---------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        queue_count: int = 8,
        message_type: str = "NORMAL",
        broker: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        brokers: Sequence[str] | None = None,
    ) -> BrokerAnswers[TopicDescription]:
        """Creates a topic, durably, and waits until the routes show it.

        Args:
            name: 1 to 127 characters of letters, digits, %, |, - and _.
            queue_count: Queues 0 .. queue_count-1 on each broker, 1 to 1,024.
            message_type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED or UNSPECIFIED.
            broker: The broker; None for all.
            options: Further properties of the topic, by name: `deduplicate` (a time such as "1h"),
                `order` ("priority"), `retention` ("until_acknowledged"), `retention_age_max` (a time),
                `indexed_properties` (names with commas between), `writes` ("closed": senders wait); the
                default of each is "off".
            exist_ok: A topic of that name is not an error; it stays as it is, whatever the other arguments
                are.
            brokers: Several brokers, instead of `broker`.

        Returns:
            The topic as each broker describes it; of brokers that share a configuration, one of them, with
            the `placement`. Where some brokers had it with these settings, it is made
            on the others, and `existing` names those that had it.

        Raises:
            TroveError: TOPIC_EXISTS if every broker has it; TOPIC_SETTINGS_DIFFER if it was made on some, and
                others have it with other settings; TOPIC_ILLEGAL, TOPIC_OPTION_ILLEGAL,
                MESSAGE_TYPE_UNSUPPORTED, REQUEST_ILLEGAL, …
        """
        check_text("name", name, errors.TOPIC_ILLEGAL)
        check_text("message_type", message_type)
        _check_queue_count(queue_count)
        _check_options(options)
        routes = self._pool.routes
        named = _named(broker, brokers)
        of_unit = dict(units_with(routes, named)) if named else {}
        wanted = {info.name: names for unit, names in of_unit.items() for info in unit if info.config}

        async def create(info: BrokerInfo) -> Created[TopicDescription]:
            connection, on = self._pool.connection(info), wanted.get(info.name, ())
            try:
                made = await connection.create_topic(name, queue_count, message_type, options or {}, on)
            except TroveError as error:
                if error.spec is not errors.TOPIC_EXISTS:
                    raise
                stated = stated_topic(error, info.name)
                return await found_there(lambda: connection.describe_topic(name), error, stated)
            return Created(made)

        found = await ask_units(
            self._pool,
            list(of_unit) or units_of(routes.brokers()),
            create,
            broker=named[0] if named else None,
            change=True,
            pending_of=lambda one: one.found.pending,
        )
        created = topics_created(name, found, exist_ok=exist_ok)
        await self._seen(lambda: all(self._is_routed(topic) for topic in created))
        return created

    async def alter_topic(
        self,
        name: str,
        queue_count: int | None = None,
        message_type: str | None = None,
        broker: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        placement: Mapping[str, int] | None = None,
    ) -> BrokerAnswers[TopicDescription]:
        """Changes a topic on every broker that has it. Values that are None, and options that are not named,
        stay as they are. Brokers that share a configuration change it together, whichever is named.

        Args:
            name: The topic.
            queue_count: Queues on each broker; never fewer than now.
            message_type: The new type.
            broker: The broker; None for every broker that has the topic.
            options: As of `create_topic`.
            placement: Where the cluster's configuration has an owner: the number of queues on each broker. A
                broker that is not named, or has 0, gets no new messages of the topic.

        Raises:
            TroveError: TOPIC_NOT_FOUND, REQUEST_ILLEGAL (fewer queues than now), MESSAGE_TYPE_UNSUPPORTED,
                TOPIC_OPTION_ILLEGAL, BROKER_NOT_FOUND, BROKER_DRAINED, …
        """
        check_text("name", name, errors.TOPIC_ILLEGAL)
        if queue_count is not None:
            _check_queue_count(queue_count)
        _check_options(options)
        placed = _checked_placement(placement)
        return await self._alter(
            self._units_having(name, broker), name, queue_count, message_type, options or {}, placed, broker
        )

    async def _alter(
        self,
        units: Sequence[Unit],
        name: str,
        queue_count: int | None,
        message_type: str | None,
        options: Mapping[str, str],
        placement: Mapping[str, int],
        broker: str | None = None,
    ) -> BrokerAnswers[TopicDescription]:
        """Changes the topic in each unit. `broker`: the one that the caller of `alter_topic` named."""
        if placement and (own := [unit[0].name for unit in units if unit[0].config is None]):
            text = f"the configuration of {', '.join(own)} has no owner: a placement needs one"
            raise TroveError(errors.REQUEST_ILLEGAL, text, argument="placement")

        async def alter(info: BrokerInfo) -> TopicDescription:
            connection = self._pool.connection(info)
            return await connection.alter_topic(
                name, queue_count or 0, message_type or "", options, placement
            )

        altered = await ask_units(
            self._pool,
            units,
            alter,
            broker=broker,
            topic=name,
            absent=(errors.TOPIC_NOT_FOUND,),
            change=True,
            pending_of=lambda topic: topic.pending,
        )
        await self._seen(lambda: all(self._has_queues(topic) for topic in altered))
        return altered

    def spreading(
        self,
        name: str,
        brokers: Sequence[str],
        queue_count: int | None = None,
        *,
        settle_s: float = SETTLE_S,
        accept_disorder: bool = False,
    ) -> AsyncGenerator[TopicSpread]:
        """Does `spread_topic` step by step. Closing the generator stops it, and opens the topic again."""
        check_text("name", name, errors.TOPIC_ILLEGAL)
        if isinstance(brokers, str) or not brokers or len(set(brokers)) < len(brokers):
            raise TroveError(errors.REQUEST_ILLEGAL, "brokers must be a list of different names")
        check_texts("brokers", list(brokers), errors.REQUEST_ILLEGAL)
        check_placement(name, brokers)  # before a FIFO topic is closed
        if queue_count is not None:
            _check_queue_count(queue_count)

        async def alter(placement: Mapping[str, int], options: Mapping[str, str]) -> TopicDescription:
            (altered,) = await self._alter([self._unit_sharing(name)], name, None, None, options, placement)
            return altered

        left = left_on(self._pool, name)
        spreading = Spreading(name, lambda: self.describe_topic(name), alter, left, settle_s=settle_s)
        return spreading.run(brokers, queue_count, accept_disorder=accept_disorder)

    async def spread_topic(
        self,
        name: str,
        brokers: Sequence[str],
        queue_count: int | None = None,
        *,
        settle_s: float = SETTLE_S,
        accept_disorder: bool = False,
    ) -> TopicSpread:
        """Has a topic lie on these brokers, where the cluster's configuration has an owner. Others get no new
        messages of it; their messages are consumed there. Nothing is moved or deleted.

        A FIFO topic takes no messages until its groups have consumed its queues: senders wait. That may take
        long; a call that is cancelled opens it again, with the brokers that it had. A call that was killed is
        repeated.

        Args:
            name: The topic.
            brokers: The brokers' names.
            queue_count: The queues on each of them; None: a new one gets as many as the others have.
            settle_s: Of a FIFO topic: how long it stays closed after the change, until all clients know it.
                RocketMQ's clients read the routes every 30 s, the SDK's know them at once.
            accept_disorder: A FIFO topic is changed at once. Messages of a group may be consumed in another
                order than they were sent.

        Raises:
            TroveError: TOPIC_NOT_FOUND, BROKER_NOT_FOUND, REQUEST_ILLEGAL (no owner, or fewer queues than
                now), CONFIG_OWNER_UNREACHABLE, …
        """
        steps = self.spreading(name, brokers, queue_count, settle_s=settle_s, accept_disorder=accept_disorder)
        step: TopicSpread | None = None
        async with aclosing(steps):
            async for step in steps:  # noqa: B007
                pass
        assert step is not None, "the last one is done"
        return step

    async def adopt_topics(self, names: Sequence[str] = ()) -> BrokerAnswers[TopicDescription]:
        """Takes topics that brokers had before they shared a configuration into the cluster's table: with
        their settings, on the brokers that have them.

        Args:
            names: The topics; none for all that are not in the table, or not where they are.

        Raises:
            TroveError: TOPIC_NOT_FOUND; TOPIC_SETTINGS_DIFFER if brokers have it with different settings;
                REQUEST_ILLEGAL if no brokers share a configuration; …
        """
        check_texts("names", names, errors.TOPIC_ILLEGAL)
        routes = self._pool.routes
        shared = [unit for unit in units_of(routes.brokers()) if unit[0].config is not None]
        if len(shared) != 1:
            text = f"{len(shared)} configurations are shared by brokers here: connect to those of one cluster"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        chosen = list(names)
        if not names:
            members = {info.name for info in shared[0]}
            listed = await self.list_topics()
            chosen = sorted({one.topic for one in listed if one.broker in members and is_outside(one)})
        adopted: list[TopicDescription] = []
        later: set[str] = set()
        for name in chosen:
            answers = await adopt(self, name, shared[0][0].name)
            adopted += answers
            later.update(answers.later)
        return BrokerAnswers(adopted, later=later)

    async def describe_topic(
        self, name: str, broker: str | None = None, *, with_sizes: bool = False
    ) -> BrokerAnswers[TopicDescription]:
        """The topic with its queues, on every broker that has it. If it lies only on brokers that are away,
        another broker with their configuration describes it without queues, and they are `missing`.

        Args:
            name: The topic.
            broker: The broker; None for every broker that has the topic.
            with_sizes: Also returns how many bytes the messages of each queue take. At the first call a
                broker reads the whole queues, 20 bytes per message; later only the new entries.

        Raises:
            TroveError: TOPIC_NOT_FOUND.
        """
        check_text("name", name, errors.TOPIC_ILLEGAL)
        found = await ask_brokers(
            self._pool,
            self._pool.routes.brokers_of(name, broker),
            lambda info: self._pool.connection(info).describe_topic(name, with_sizes),
            broker=broker,
            topic=name,
            absent=(errors.TOPIC_NOT_FOUND,),
        )
        there = [one for one in found if one.queues or not one.placement or one.broker in one.placement]
        if there or broker is not None:
            return found.of(there or found)
        return BrokerAnswers(found[:1], missing={*found.missing, *found[0].placement})

    async def next_sequences(self, topic: str, producer_id: str, broker: str | None = None) -> dict[str, int]:
        """The number of the next message of a producer, by broker; 0 if the broker does not know the producer
        (any more).

        Args:
            topic: The topic.
            producer_id: The producer's id: `USER:ID` if its client has an access key.
            broker: The broker; None for every one that has the topic.

        Raises:
            TroveError: TOPIC_NOT_FOUND, PRODUCER_SEQUENCE_ILLEGAL, REQUEST_ILLEGAL (the topic has no option
                deduplicate), INDEX_DISABLED.
        """
        brokers = self._pool.routes.brokers_of(topic, broker)
        async with self._pool.explaining():  # a producer that continues needs the number of each
            found = await asyncio.gather(
                *(self._pool.connection(info).next_sequence(topic, producer_id) for info in brokers)
            )
        return {info.name: number for info, number in zip(brokers, found, strict=True)}

    async def list_topics(
        self, include_system: bool = False, broker: str | None = None
    ) -> BrokerAnswers[TopicDescription]:
        """Every topic of every broker, without queues; a topic on two brokers is listed twice. Where the
        given servers do not lead to all brokers, also the places on others of the shared configuration."""
        brokers = self._pool.routes.brokers(broker)
        elsewhere = broker is None and self._pool.unseen() > 0

        lists = await ask_brokers(
            self._pool,
            brokers,
            lambda info: self._pool.connection(info).list_topics(include_system, elsewhere=elsewhere),
            broker=broker,
        )
        found = [topic for topics in lists for topic in topics]
        return lists.of(with_places(found, {info.name for info in brokers}) if elsewhere else found)

    async def delete_topic(self, name: str, broker: str | None = None) -> TopicDeletion:
        """Deletes a topic and its messages, and waits until it left the routes. Brokers that share a
        configuration delete it together.

        Returns:
            Where it is deleted, and the brokers on which it is not, because they are away.

        Raises:
            TroveError: TOPIC_NOT_FOUND if no broker has it; REQUEST_ILLEGAL if one broker is named, and it
                lies on others with the same configuration, too.
        """
        check_text("name", name, errors.TOPIC_ILLEGAL)
        if broker is not None:
            await self._check_only_there(name, self._pool.routes.broker(broker))

        async def delete(info: BrokerInfo) -> TopicDeletion:
            return await self._pool.connection(info).delete_topic(name, info.name)

        answers = await ask_units(
            self._pool,
            self._units_having(name, broker),
            delete,
            broker=broker,
            topic=name,
            absent=(errors.TOPIC_NOT_FOUND,),
            change=True,
            pending_of=lambda deletion: deletion.pending,
        )
        offsets = {info: offset for deletion in answers for info, offset in deletion.items()}
        deleted = TopicDeletion(offsets, pending=answers.pending, later=answers.later)
        await self._seen(lambda: not any(self._pool.routes.has_topic(name, info) for info in deleted))
        return deleted

    async def _check_only_there(self, name: str, info: BrokerInfo) -> None:
        if info.config is None:
            return
        async with self._pool.explaining():
            found = await self._pool.connection(info).describe_topic(name)
        others = sorted(found.placement.keys() - {info.name})
        if others:
            text = f"topic {name} lies on {', '.join(others)}, too: delete it on all of them, or take "
            text += f"{info.name} from its placement (trovemq topic spread {name})"
            raise TroveError(errors.REQUEST_ILLEGAL, text, argument="broker")

    def _units_having(self, topic: str, broker: str | None) -> list[Unit]:
        """The brokers that have the topic, each with those that share its configuration."""
        routes = self._pool.routes
        having = routes.brokers_of(topic, broker)
        if broker is not None:
            return [(having[0],)]
        ids = {info.config.id for info in having if info.config is not None}
        names = {info.name for info in having}
        return units_of(
            info
            for info in routes.brokers()
            if info.name in names or (info.config is not None and info.config.id in ids)
        )

    def _unit_sharing(self, topic: str) -> Unit:
        """The brokers that share the configuration with the topic. One that has the topic may not have said
        yet that it does; without any that has, the topic's own brokers are asked."""
        routes = self._pool.routes
        having = {info.name for info in routes.brokers_of(topic)}
        sharing = [unit for unit in units_of(routes.brokers()) if unit[0].config is not None]
        with_topic = (unit for unit in sharing if any(info.name in having for info in unit))
        return next(with_topic, None) or next(iter(sharing), None) or self._units_having(topic, None)[0]

    def _is_routed(self, topic: TopicDescription) -> bool:
        routes = self._pool.routes
        return all(routes.has_topic(topic.topic, broker) for broker in self._awaited(topic))

    def _has_queues(self, topic: TopicDescription) -> bool:
        placed = self._awaited(topic)
        return all(self._queues_on(topic.topic, broker) == queues for broker, queues in placed.items())

    def _awaited(self, topic: TopicDescription) -> Mapping[str, int]:
        """The brokers that the topic lies on, and its queues there, without those whose routes will not show
        it soon: a client of one broker knows no other one."""
        placement = topic.placement or {topic.broker: topic.queue_count}
        live = self._pool.routes.state
        return {
            broker: queues
            for broker, queues in placement.items()
            if broker not in topic.pending and live.broker(broker) is not None
        }

    def _queues_on(self, topic: str, broker: str) -> int:
        route = self._pool.routes.state.broker(broker)
        entry = route.topic(topic) if route is not None else None
        return 0 if entry is None else entry.queue_count

    async def _seen(self, condition: Callable[[], bool]) -> None:
        """Waits until the routes show the change. The change is made; late routes are not an error."""
        await self._pool.routes.wait_until(condition, ROUTE_WAIT_SECONDS)

    # --- group offsets --------------------------------------------------------------------------------

    async def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, broker: str | None = None
    ) -> None:
        """Stores the next offset that a group will consume of a queue; durable on return."""
        check_text("group", group, errors.GROUP_ILLEGAL)
        check_numbers(queue_id=queue_id, offset=offset)
        info = self._pool.routes.broker_of_queue(topic, queue_id, broker)
        async with self._pool.explaining():
            await self._pool.connection(info).commit_offset(group, topic, queue_id, offset)

    async def get_offset(
        self, group: str, topic: str, queue_id: int, broker: str | None = None
    ) -> int | None:
        """The next offset that the group will consume in a queue; None if it has none."""
        check_text("group", group, errors.GROUP_ILLEGAL)
        info = self._pool.routes.broker_of_queue(topic, queue_id, broker)
        async with self._pool.explaining():
            return await self._pool.connection(info).get_offset(group, topic, queue_id)

    async def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        queue_id: int | None = None,
        timestamp: int | None = None,
        offset: int | None = None,
        to_earliest: bool = False,
        to_latest: bool = False,
        to_min: bool = False,
        to_max: bool = False,
        broker: str | None = None,
    ) -> BrokerAnswers[OffsetReset]:
        """Sets a group's offsets of every queue of a topic, or of one; durable on return.

        Args:
            group: The consumer group.
            topic: The topic.
            queue_id: One queue; None for all.
            timestamp: Epoch ms: to the first message stored at or after it.
            offset: To this offset.
            to_earliest: To the queue's first message.
            to_latest: To the queue's end.
            to_min: The former name of `to_earliest`, until the first release.
            to_max: The former name of `to_latest`, until then.
            broker: The broker; None for every one that has the topic.

        Raises:
            TroveError: REQUEST_ILLEGAL unless exactly one of the four targets is given; TOPIC_NOT_FOUND, …
        """
        check_text("group", group, errors.GROUP_ILLEGAL)
        target = reset_target(timestamp, offset, to_earliest or to_min, to_latest or to_max)
        if queue_id is None:
            brokers = self._pool.routes.brokers_of(topic, broker)
        else:
            brokers = [self._pool.routes.broker_of_queue(topic, queue_id, broker)]
        lists = await ask_brokers(
            self._pool,
            brokers,
            lambda info: self._pool.connection(info).reset_offset(group, topic, queue_id, target, info.name),
            broker=broker,
            topic=topic,
            absent=(errors.TOPIC_NOT_FOUND,),
            change=True,
        )
        return lists.of(entry for entries in lists for entry in entries)

    # --- the cluster ----------------------------------------------------------------------------------

    async def statistics(
        self, broker: str | None = None, *, topics: bool = False
    ) -> BrokerAnswers[BrokerStatistics]:
        """Each broker's counters, and with `topics` the traffic of each topic there."""
        return await ask_brokers(
            self._pool,
            self._pool.routes.brokers(broker),
            lambda info: self._pool.connection(info).statistics(topics=topics),
            broker=broker,
        )

    async def cluster(self) -> ClusterState:
        """The live brokers with their topics, fetched now."""
        await self._pool.refresh()
        return self._pool.routes.state


def _named(broker: str | None, brokers: Sequence[str] | None) -> list[str]:
    """The names of the brokers; none for all."""
    if brokers is None:
        return [] if broker is None else [broker]
    if broker is not None or not brokers:
        text = "give broker or brokers, and at least one name"
        raise TroveError(errors.REQUEST_ILLEGAL, text, argument="brokers")
    check_texts("brokers", brokers)
    return list(dict.fromkeys(brokers))


def _checked_placement(placement: object) -> dict[str, int]:
    if placement is None:
        return {}
    if not isinstance(placement, Mapping) or not placement:
        text = f"placement must be a mapping of brokers to numbers of queues, {not_of(placement)}"
        raise TroveError(errors.REQUEST_ILLEGAL, text, argument="placement")
    check_texts("placement", list(placement))
    for broker, queues in placement.items():
        check_number(f"placement[{broker!r}]", queues)
    return dict(placement)


def _check_options(options: object) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping):
        text = f"options must be a mapping of texts, {not_of(options)}"
        raise TroveError(errors.TOPIC_OPTION_ILLEGAL, text, argument="options")
    check_texts("options", list(options), errors.TOPIC_OPTION_ILLEGAL)
    check_texts("options", list(options.values()), errors.TOPIC_OPTION_ILLEGAL)


def _check_queue_count(queue_count: int) -> None:
    check_number("queue_count", queue_count)
    # On the wire 0 means "not given". Here that is None, and 0 is a mistake.
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        text = f"queue_count={queue_count} is not in 1..{QUEUE_COUNT_MAX}"
        raise TroveError(errors.REQUEST_ILLEGAL, text, queue_count=queue_count)
