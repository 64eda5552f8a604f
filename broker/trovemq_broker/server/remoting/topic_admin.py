"""Topics, for RocketMQ's tools: their settings, their queues, and who reads them.

| request        | this topic is                                      | the call                         |
|----------------|----------------------------------------------------|----------------------------------|
| create, update | unknown                                            | CreateTopic, on this broker      |
|                | here, and not in a cluster's configuration         | AlterTopic                       |
|                | in the cluster's configuration                     | AlterTopic: queues of this one   |
| delete         | in the configuration, with queues of other brokers | AlterTopic: without this broker  |
|                | any other                                          | DeleteTopic                      |

A tool sends these to each broker of a cluster in turn, so a topic is created on the first and placed on the
others. One count of queues is for reading and writing: the larger of the two that a tool names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.bodies import read_body
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.wire.tool_calls import NativeCall, alter_topic, create_topic, delete_topic
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_proto.remoting.bodies import topic_list
from trovemq_proto.remoting.json_text import json_text, queue_key, queue_map
from trovemq_store.engine.queues import queue_ids, queue_range
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import check_topic_name, is_brokers_own, is_system_topic
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig

PlacementOf = Callable[[str], Mapping[str, int]]
"""Queues by broker of a topic of the cluster's configuration; nothing for any other."""
TYPE_CHANGE: Final = "+message.type"
QUEUES_STEP: Final = 64
TOPICS_STEP: Final = 128
TOPICS_AT_ONCE_MAX: Final = 1_000
_OPEN: Final = PERM_READ | PERM_WRITE


class WantedTopic(msgspec.Struct, rename="camel"):
    """A TopicConfig of RocketMQ, as far as a topic here has such settings."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = _OPEN
    attributes: dict[str, str] = {}


class WantedTopics(msgspec.Struct, rename="camel"):
    topic_config_list: list[WantedTopic]


PLACEMENT: Final = "placement"
"""The field that an error of the cluster's configuration names."""


class _Change(NamedTuple):
    queue_count: int
    message_type: str
    is_closed: bool


_WANTED: Final = msgspec.json.Decoder(WantedTopics, strict=False)


class TopicAdmin:
    """For use on the event loop only."""

    def __init__(
        self, core: BrokerCore, calls: NativeCalls, members: Members, placement_of: PlacementOf
    ) -> None:
        self._core = core
        self._calls = calls
        self._members = members
        self._placement_of = placement_of

    # --- changes ----------------------------------------------------------------------------------------
    def update(self, request: Request) -> None:
        """UPDATE_AND_CREATE_TOPIC."""
        fields = request.fields
        wanted = WantedTopic(
            fields.text("topic"),
            fields.int32("readQueueNums"),
            fields.int32("writeQueueNums"),
            fields.int32("perm"),
            _attributes(fields.text("attributes", "")),
        )
        request.run(self._update(request, [wanted]))

    def update_list(self, request: Request) -> None:
        """UPDATE_AND_CREATE_TOPIC_LIST: one after the other, to the first that is refused."""
        wanted = read_body(_WANTED, request).topic_config_list
        if len(wanted) > TOPICS_AT_ONCE_MAX:
            text = f"a request has {TOPICS_AT_ONCE_MAX} topics at most"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        request.run(self._update(request, wanted))

    async def _update(self, request: Request, wanted: Iterable[WantedTopic]) -> None:
        for one in wanted:
            try:
                await self._calls.make(request, self._update_of(one))
            except TroveError as error:
                if error.spec is not errors.TOPIC_EXISTS or PLACEMENT not in error.fields:
                    raise
                # another broker has made it meanwhile
                await self._calls.make(request, self._alteration(one, _change(one), is_shared=True))
        request.answer()

    def _update_of(self, wanted: WantedTopic) -> NativeCall:
        """TroveError TOPIC_ILLEGAL, REQUEST_ILLEGAL."""
        name, change = wanted.topic_name, _change(wanted)
        check_topic_name(name)
        placement = self._placement_of(name)
        if not placement and self._core.store.topics.get(name) is None:
            options = {"writes": "closed"} if change.is_closed else {}
            kind = change.message_type or "NORMAL"
            return create_topic(name, change.queue_count, kind, options, self._core.broker)
        return self._alteration(wanted, change, is_shared=bool(placement))

    def _alteration(self, wanted: WantedTopic, change: _Change, *, is_shared: bool) -> NativeCall:
        """Of a topic of the cluster, the queues of this broker alone: another broker's may change now."""
        name, here = wanted.topic_name, self._core.store.topics.get(wanted.topic_name)
        is_closed = here is not None and here.options.closed
        options = (
            {"writes": "closed" if change.is_closed else "open"} if change.is_closed != is_closed else {}
        )
        queues_on = {self._core.broker: change.queue_count} if is_shared else None
        return alter_topic(
            name,
            queue_count=0 if is_shared else change.queue_count,
            message_type=change.message_type,
            options=options,
            queues_on=queues_on,
        )

    def delete(self, request: Request) -> None:
        """DELETE_TOPIC_IN_BROKER: an unknown topic is no error, as in RocketMQ."""
        name = request.fields.text("topic").strip()
        if not name:
            raise TroveError(errors.TOPIC_ILLEGAL, "The specified topic is blank.")
        if is_brokers_own(name):
            raise TroveError(errors.TOPIC_ILLEGAL, f"The topic {name} is the broker's own.")
        request.run(self._delete(request, name))

    async def _delete(self, request: Request, name: str) -> None:
        placement, broker = self._placement_of(name), self._core.broker
        if broker in placement:
            try:
                await self._calls.make(request, alter_topic(name, queues_on={broker: 0}))
            except TroveError as error:
                if error.fields.get("field") != PLACEMENT:
                    raise
                await self._delete_whole(request, name)  # no other broker has queues of it
        elif not placement:
            await self._delete_whole(request, name)
        request.answer()

    async def _delete_whole(self, request: Request, name: str) -> None:
        try:
            await self._calls.make(request, delete_topic(name))
        except TroveError as error:
            if error.spec is not errors.TOPIC_NOT_FOUND:
                raise

    # --- settings ---------------------------------------------------------------------------------------
    def one(self, request: Request) -> None:
        """GET_TOPIC_CONFIG."""
        request.answer(body=json_text(shown_topic(self._config(request.fields.text("topic")))))

    def all(self, request: Request) -> None:
        """GET_ALL_TOPIC_CONFIG: all, or a page of them."""
        fields = request.fields
        request.run(self._all(request, fields.int32("topicSeq", 0), fields.int32("maxTopicNum", 0)))

    async def _all(self, request: Request, first: int, count: int) -> None:
        async with self._calls.query(request):
            total, table = await self._core.turns.run(self._table_steps(request, first, count))
        version = data_version(self._core.store.topics.data_version)
        body = json_text({"dataVersion": version, "topicConfigTable": table})
        request.answer(fields={"totalTopicNum": str(total)}, body=body)

    def _table_steps(
        self, request: Request, first: int, count: int
    ) -> Steps[tuple[int, dict[str, msgspec.Raw]]]:
        """The number of all topics, and the page, without topics that are deleted meanwhile."""
        known = self._core.store.topics.names(include_system=True)
        names = yield from self._calls.seen_steps(request, Kind.TOPIC, known)
        page = names[max(first, 0) :][: count if count > 0 else None]
        table = {}
        for number, name in enumerate(page, 1):
            if number % TOPICS_STEP == 0:
                yield
            if (config := self._core.store.topics.get(name)) is not None:
                table[name] = msgspec.Raw(json_text(shown_topic(config)))
        return len(names), table

    def system(self, request: Request) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        names = filter(is_system_topic, self._core.store.topics.names(include_system=True))
        shown = self._calls.seen(request, Kind.TOPIC, names)
        request.answer(body=json_text(topic_list(shown)))

    def _config(self, name: str) -> TopicConfig:
        """TroveError TOPIC_NOT_FOUND."""
        store = self._core.store
        config = store.topics.get(name)
        if config is not None:
            return config
        count = max(queue_ids(store, name)) + 1
        return TopicConfig(name, count, 0, perm=PERM_READ, message_type="UNSPECIFIED")

    # --- use --------------------------------------------------------------------------------------------
    def statistics(self, request: Request) -> None:
        """GET_TOPIC_STATS_INFO."""
        request.run(self._statistics(request, request.fields.text("topic")))

    async def _statistics(self, request: Request, name: str) -> None:
        queues = await self._core.turns.run_from_now(self._queue_steps(name))
        request.answer(body=json_text({"offsetTable": queues, "topicPutTps": 0.0}))

    def _queue_steps(self, name: str) -> Steps[msgspec.Raw]:
        store, entries = self._core.store, []
        for number, queue_id in enumerate(queue_ids(store, name), 1):
            if number % QUEUES_STEP == 0:
                yield
            low, high = queue_range(store, name, queue_id)
            queue = store.consume_queues.get(name, queue_id)
            time_ms: int = 0
            if queue is not None and high > low:
                ((place, _, _),) = queue.unit_rows(QueueOffset(high - 1), 1)
                time_ms = store.store_timestamp_at(place) or 0
            row = {"lastUpdateTimestamp": time_ms, "maxOffset": high, "minOffset": low}
            entries.append((queue_key(self._core.broker, name, queue_id), row))
        return queue_map(entries)

    def groups(self, request: Request) -> None:
        """QUERY_TOPIC_CONSUME_BY_WHO: the groups with members that read it, and those with an offset."""
        name = request.fields.text("topic")
        asked = {group for group, _ in self._core.registry.subscriptions(topic=name)}
        found = {*asked, *self._members.groups_of(name), *self._core.store.offsets.groups(name)}
        shown = self._calls.seen(request, Kind.GROUP, sorted(found))
        request.answer(body=json_text({"groupList": shown}))


def shown_topic(config: TopicConfig) -> dict[str, object]:
    """RocketMQ's TopicConfig. A topic that takes no new messages for a time is shown as one for reading."""
    shown: dict[str, object] = dict(config.to_json({}))
    if config.options.closed:
        shown["perm"] = config.perm & ~PERM_WRITE
    return shown


def data_version(counter: int) -> dict[str, int]:
    return {"counter": counter, "stateVersion": 0, "timestamp": 0}


def _change(wanted: WantedTopic) -> _Change:
    """TroveError REQUEST_ILLEGAL."""
    if wanted.perm & _OPEN not in (_OPEN, PERM_READ):
        text = f"perm {wanted.perm} is not supported: 6 reads and writes, 4 takes no new messages"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="perm")
    if min(wanted.read_queue_nums, wanted.write_queue_nums) < 1:
        raise TroveError(errors.REQUEST_ILLEGAL, "a topic has at least one queue", field="writeQueueNums")
    kind = ""
    for name, value in wanted.attributes.items():
        if name.removeprefix("+") != "message.type":
            text = f"attribute {name[:80]!r} is not supported: there is {TYPE_CHANGE}"
            raise TroveError(errors.REQUEST_ILLEGAL, text, field="attributes")
        kind = value
    queue_count = max(wanted.read_queue_nums, wanted.write_queue_nums)
    return _Change(queue_count, kind, is_closed=not wanted.perm & PERM_WRITE)


def _attributes(text: str) -> dict[str, str]:
    """Of a header: `+message.type=FIFO,-other`. One that is removed has no value."""
    parts = (part.strip().partition("=") for part in text.split(",") if part.strip())
    return {name: value for name, _, value in parts}


__all__ = ["PlacementOf", "TopicAdmin", "data_version", "shown_topic"]
