"""The progress of consumer groups, for RocketMQ's tools: how far they are, and how they are set back.

A group is set back at the broker, and its connected members of this protocol are notified: they drop their
queues and store the new offsets, so that none of an earlier message counts. For a group without members the
tool stores the offsets (UPDATE_CONSUMER_OFFSET).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from trovemq_broker.fetch.offsets import ResetTarget
from trovemq_broker.security.actions import Kind
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import Members, retry_topic
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.wire.tool_calls import reset_group, reset_offsets
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.remoting.codes import RequestCode
from trovemq_proto.remoting.json_text import json_text, queue_key, queue_map
from trovemq_store.engine.queues import queue_ids, queue_range
from trovemq_store.engine.steps import Steps

QUEUES_MAX: Final = 10_000
"""The most queues of one answer."""
QUEUES_STEP: Final = 64
GROUPS_STEP: Final = 64
CPP: Final = "CPP"
"""Its client reads no maps with objects as keys."""
_Row: TypeAlias = tuple[dict[str, object], dict[str, int]]
"""A queue as a key, and the group's offsets there."""


class Progress:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, calls: NativeCalls, members: Members) -> None:
        self._core = core
        self._calls = calls
        self._members = members

    # --- progress ---------------------------------------------------------------------------------------
    def statistics(self, request: Request) -> None:
        """GET_CONSUME_STATS: of one topic, of some, or of all that the group reads."""
        fields = request.fields
        group, topic = fields.text("consumerGroup"), fields.text("topic", "")
        named = [name for name in fields.text("topicList", "").split(";") if name]
        asked = [topic] if topic else named or self._topics_of(group)
        topics = self._calls.seen(request, Kind.TOPIC, asked)
        request.run(self._statistics(request, group, topics))

    async def _statistics(self, request: Request, group: str, topics: Sequence[str]) -> None:
        async with self._calls.query(request):
            entries = await self._core.turns.run(self._row_steps(group, topics))
        request.answer(body=json_text({"consumeTps": 0.0, "offsetTable": queue_map(entries)}))

    def _topics_of(self, group: str) -> list[str]:
        """Of a group with members only those that they still subscribe to; and its retry topic."""
        topics = self._core.group_changes.topics_of(group)
        asked = {topic for _, topic in self._core.registry.subscriptions(group=group)}
        members = self._members.group(group)
        if members is not None:
            asked |= members.subscriptions.keys()
        if members is not None or self._core.registry.members(group):
            topics = [topic for topic in topics if topic in asked]
        retry = retry_topic(group)
        return [*topics, *([retry] if retry in self._core.store.topics else [])]

    def _row_steps(self, group: str, topics: Iterable[str]) -> Steps[list[_Row]]:
        """The rows of all queues. TroveError LIMIT_EXCEEDED."""
        core = self._core
        entries: list[_Row] = []
        for topic in topics:
            if topic not in core.store.topics and not core.store.consume_queues.has_topic(topic):
                continue
            for row in core.delivery.progress(group, topic, core.clock_ms()):
                if len(entries) >= QUEUES_MAX:
                    text = f"the group reads more than {QUEUES_MAX} queues; name one topic"
                    raise TroveError(errors.LIMIT_EXCEEDED, text)
                if len(entries) % QUEUES_STEP == QUEUES_STEP - 1:
                    yield
                _, high = queue_range(core.store, topic, row.queue_id)
                consumed = row.committed or 0
                shown = {
                    "brokerOffset": high,
                    "consumerOffset": consumed,
                    "lastTimestamp": self._time_at(topic, row.queue_id, consumed - 1),
                    "pullOffset": max(consumed, row.next_offset),
                }
                entries.append((queue_key(core.broker, topic, row.queue_id), shown))
        return entries

    def _time_at(self, topic: str, queue_id: QueueId, offset: int) -> int:
        """The store time of the message; 0 if it is not there."""
        store = self._core.store
        queue = store.consume_queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return 0
        ((place, _, _),) = queue.unit_rows(QueueOffset(offset), 1)
        return store.store_timestamp_at(place) or 0

    def time_span(self, request: Request) -> None:
        """QUERY_CONSUME_TIME_SPAN."""
        fields = request.fields
        request.run(self._time_span(request, fields.text("group"), fields.text("topic")))

    async def _time_span(self, request: Request, group: str, topic: str) -> None:
        queue_ids(self._core.store, topic)  # an unknown topic is an error
        async with self._calls.query(request):
            rows = await self._core.turns.run(self._span_steps(group, topic))
        request.answer(body=json_text({"consumeTimeSpanSet": rows}))

    def _span_steps(self, group: str, topic: str) -> Steps[list[dict[str, object]]]:
        core, rows = self._core, []
        for number, row in enumerate(core.delivery.progress(group, topic, core.clock_ms()), 1):
            if number % QUEUES_STEP == 0:
                yield
            low, high = queue_range(core.store, topic, row.queue_id)
            consumed = row.committed or 0
            waiting_ms = self._time_at(topic, row.queue_id, consumed)
            rows.append(
                {
                    "consumeTimeStamp": self._time_at(topic, row.queue_id, max(consumed - 1, low)),
                    "delayTime": max(core.clock_ms() - waiting_ms, 0) if waiting_ms else 0,
                    "maxTimeStamp": self._time_at(topic, row.queue_id, high - 1),
                    "messageQueue": queue_key(core.broker, topic, row.queue_id),
                    "minTimeStamp": self._time_at(topic, row.queue_id, low),
                }
            )
        return rows

    def of_broker(self, request: Request) -> None:
        """GET_BROKER_CONSUME_STATS: all groups."""
        request.run(self._of_broker(request, orderly=request.fields.boolean("isOrder")))

    async def _of_broker(self, request: Request, *, orderly: bool) -> None:
        async with self._calls.query(request):
            body = await self._core.turns.run(self._broker_steps(orderly=orderly))
        request.answer(body=json_text({"brokerAddr": str(self._core.advertised), **body}))

    def _broker_steps(self, *, orderly: bool) -> Steps[dict[str, object]]:
        core, found = self._core, []
        difference = queues = 0
        topics = yield from core.group_changes.topics_by_group()
        for number, (group, read) in enumerate(sorted(topics.items()), 1):
            if number % GROUPS_STEP == 0:
                yield
            known = core.groups.get(group)
            if orderly and (known is None or not known.orderly):
                continue
            stats = []
            for topic in read:
                entries = yield from self._row_steps(group, [topic])
                difference += sum(row["brokerOffset"] - row["consumerOffset"] for _, row in entries)
                queues += len(entries)
                stats.append({"consumeTps": 0.0, "offsetTable": queue_map(entries)})
            found.append({group: stats})
            if queues > QUEUES_MAX:
                text = f"the groups read more than {QUEUES_MAX} queues; ask for each (consumerProgress)"
                raise TroveError(errors.LIMIT_EXCEEDED, text)
        return {"consumeStatsList": found, "totalDiff": difference, "totalInflightDiff": 0}

    # --- changes ----------------------------------------------------------------------------------------
    def reset(self, request: Request) -> None:
        """INVOKE_BROKER_TO_RESET_OFFSET: of one queue to an offset, or of one or all to a time (-1: the
        end). Without `isForce` no queue moves forward."""
        fields = request.fields
        group, topic = fields.text("group"), fields.text("topic")
        queue_id, offset = fields.int32("queueId", -1), fields.int64("offset", -1)
        time_ms = fields.int64("timestamp")
        chosen = None if queue_id < 0 else QueueId(queue_id)
        if chosen is not None and offset >= 0:
            target = ResetTarget(offset=QueueOffset(offset))
        elif time_ms < 0:
            target = ResetTarget(to_max=True)
        else:
            target = ResetTarget(timestamp=EpochMs(time_ms))
        request.run(self._reset(request, group, topic, chosen, target))

    async def _reset(
        self, request: Request, group: str, topic: str, queue_id: QueueId | None, target: ResetTarget
    ) -> None:
        entries = self._core.offsets.preview(group, topic, queue_id, target)
        if self._members.group(group) is None and not self._core.registry.members(group):
            raise TroveError(
                errors.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic}",
            )
        forced = request.fields.boolean("isForce")
        kept = {
            one.queue_id: one.offset_before
            for one in entries
            if not forced and one.offset_before is not None and one.offset > one.offset_before
        }
        moved: dict[QueueId, int] = {}
        for one in entries:
            if one.queue_id not in kept:
                call = reset_group(group, topic, one.queue_id, offset=one.offset)
                moved |= reset_offsets(await self._calls.make(request, call))
        moved |= kept
        self._tell(request, group, topic, moved)
        request.answer(body=self._table(topic, moved, as_list=request.header.language == CPP))

    def _tell(self, request: Request, group: str, topic: str, offsets: Mapping[QueueId, int]) -> None:
        """Each connected member gets the new offsets."""
        members = self._members.group(group)
        fields = request.header.fields
        header = {
            "group": group,
            "isForce": fields.get("isForce", "true"),
            "timestamp": fields.get("timestamp", "-1"),
            "topic": topic,
        }
        for member, heard in members.members.items() if members is not None else ():
            body = self._table(topic, offsets, as_list=heard.language == CPP)
            member.connection.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)

    def _table(self, topic: str, offsets: Mapping[QueueId, int], *, as_list: bool) -> bytes:
        broker = self._core.broker
        if as_list:
            rows = [{**queue_key(broker, topic, one), "offset": at} for one, at in offsets.items()]
            return json_text({"offsetTable": rows})
        table = queue_map((queue_key(broker, topic, one), at) for one, at in offsets.items())
        return json_text({"offsetTable": table})

    def clone(self, request: Request) -> None:
        """CLONE_GROUP_OFFSET."""
        fields = request.fields
        source, target = fields.text("srcGroup"), fields.text("destGroup")
        topic = fields.text("topic", "")
        topics = [topic] if topic else self._core.group_changes.topics_of(source)
        request.run(self._clone(request, source, target, topics))

    async def _clone(self, request: Request, source: str, target: str, topics: Sequence[str]) -> None:
        for topic in topics:
            for queue_id, offset in self._core.store.offsets.of(source, topic):
                await self._calls.make(request, reset_group(target, topic, queue_id, offset=offset))
        request.answer()
