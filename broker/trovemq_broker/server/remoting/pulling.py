"""PULL_MESSAGE and LITE_PULL_MESSAGE: records of a queue from an offset on, byte for byte as in the log.

| found | code | next offset |
| --- | --- | --- |
| messages | SUCCESS | after the last one that was examined |
| messages, and none matches | PULL_RETRY_IMMEDIATELY | the same |
| the end of the queue | PULL_NOT_FOUND, after the wait that the client asked for | the same |
| an offset outside of the queue | PULL_OFFSET_MOVED | the nearest one that exists |

A client that gets PULL_OFFSET_MOVED drops the queue and stores the offset: it is not sent for anything that
passes. A client that does not read its answers is given no further ones (Connection.is_full).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from trovemq_broker.fetch.long_poll import Waiter
from trovemq_broker.fetch.pull import TAGS_MAX, PullRequest, PullResult
from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.offsets import Offsets
from trovemq_broker.server.remoting.stats import GroupCounts
from trovemq_daemon.remoting.request import Connection, Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import RecordBatch, parse_properties
from trovemq_proto.records.layout import QUEUE_OFFSET_AT
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_store.topics.names import is_brokers_own, is_system_group

COMMITS: Final = 1
MAY_WAIT: Final = 2
HAS_SUBSCRIPTION: Final = 4
"""Bits of the request's system flag."""
MESSAGES_MAX: Final = 1_024
BYTES_MAX: Final = 256 << 10
"""Of one answer; one message at least. RocketMQ's limit."""
WAIT_MAX_MS: Final = 30_000
"""Clients give an answer up after 30 s and some."""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
FORBIDDEN_BROKER: Final = "1"
FORBIDDEN_GROUP: Final = "2"
FORBIDDEN_TOPIC: Final = "3"
NOTHING_CAME: Final = "OFFSET_OVERFLOW_ONE"


class _Pull(NamedTuple):
    request: Request
    group: str
    wanted: PullRequest
    filter: Filter
    wait_ms: int


class _Wait:
    """A pull at the end of its queue, until this grows. Its waiter calls it once, and is freed then, without
    a collection of cycles. `places`: of the answer if nothing comes."""

    __slots__ = ("_places", "_pull", "_pulls", "_started_s", "waiter")

    def __init__(self, pulls: Pulls, pull: _Pull, places: tuple[int, int, int]) -> None:
        self._pulls = pulls
        self._pull = pull
        self._places = places
        self._started_s = pull.request.connection.now()
        self.waiter: Waiter | None = None

    def __call__(self, is_grown: bool) -> None:
        waiter, self.waiter = self.waiter, None
        assert waiter is not None, "it waits"
        pull, pulls = self._pull, self._pulls
        pulls.waits_no_more(pull.request.connection, waiter)
        passed_ms = int((pull.request.connection.now() - self._started_s) * 1000)
        if is_grown:
            pulls.look_again(pull._replace(wait_ms=max(pull.wait_ms - passed_ms, 0)))
        elif pull.request.connection.is_full:
            pulls.look_again(pull._replace(wait_ms=0))
        else:
            pull.request.answer(ResponseCode.PULL_NOT_FOUND, NOTHING_CAME, _offsets(*self._places))


class Pulls:
    """For use on the event loop only."""

    def __init__(
        self, core: BrokerCore, members: Members, offsets: Offsets, counts: GroupCounts | None = None
    ) -> None:
        self._core = core
        self._counts = counts or GroupCounts()
        self._members = members
        self._offsets = offsets
        self._waiters: dict[Connection, set[Waiter]] = {}

    def pull(self, request: Request) -> None:
        fields = request.fields
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id, offset = QueueId(fields.int32("queueId")), QueueOffset(fields.int64("queueOffset"))
        count, flags = fields.int32("maxMsgNums"), fields.int32("sysFlag")
        commit = fields.int64("commitOffset", 0)
        commits = bool(flags & COMMITS) and commit > 0
        members = self._members
        if members.is_refused(request.connection, group) or (commits and self._needs_conversion(group)):
            request.run(self._pull_later(request, group))
            return
        members.check_kind(request.connection, group)
        if not self._check_group(request, group) or not self._check_topic(request, topic, queue_id, group):
            return
        found = self._filter(request, group, topic, flags)
        if found is None:
            return
        if commits:
            self._offsets.store_soon(group, topic, queue_id, QueueOffset(commit))
        wanted = PullRequest(
            topic,
            queue_id,
            offset,
            min(max(count, 1), MESSAGES_MAX),
            BYTES_MAX,
            tags=_tags(found),
        )
        wait_ms = min(fields.int64("suspendTimeoutMillis", 0), WAIT_MAX_MS) if flags & MAY_WAIT else 0
        self._look(_Pull(request, group, wanted, found, max(wait_ms, 0)))

    async def _pull_later(self, request: Request, group: str) -> None:
        await self._members.admit(request.connection, group)
        self.pull(request)

    def _needs_conversion(self, group: str) -> bool:
        return group != TOOLS_GROUP and self._core.kinds.needs_conversion(group)

    # --- checks -----------------------------------------------------------------------------------------
    def _check_group(self, request: Request, name: str) -> bool:
        """False: the request is answered."""
        if name == TOOLS_GROUP or is_system_group(name):
            return True
        core = self._core
        group = core.groups.for_use(
            name,
            auto_create=core.settings.auto_create_group,
            now_ms=core.clock_ms(),
            creator=present_creator(),
        )
        if group.consume_enable:
            return True
        self._refuse(request, f"subscription group no permission, {name}", FORBIDDEN_GROUP)
        return False

    def _check_topic(self, request: Request, topic: str, queue_id: QueueId, group: str) -> bool:
        if is_brokers_own(topic):
            self._refuse(request, f"the topic[{topic}] is the broker's own", FORBIDDEN_TOPIC)
            return False
        config = self._core.store.topics.get(topic)
        if config is None:
            return True  # the store may have its queues; else the pull says that there is none
        if not config.readable:
            self._refuse(request, f"the topic[{topic}] pulling message is forbidden", FORBIDDEN_TOPIC)
            return False
        if not 0 <= queue_id < max(config.queue_count, config.write_queue_count):
            peer = request.connection.peer
            text = f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
            text += f"[{config.queue_count}] consumer:[{peer}] group:[{group}]"
            request.answer(ResponseCode.INVALID_PARAMETER, text)
            return False
        return True

    @staticmethod
    def _refuse(request: Request, text: str, kind: str) -> None:
        request.answer(ResponseCode.NO_PERMISSION, text, {**_offsets(0, 0, 0), "forbiddenType": kind})

    def _filter(self, request: Request, group: str, topic: str, flags: int) -> Filter | None:
        """None: the request is answered. TroveError FILTER_ILLEGAL."""
        fields = request.fields
        if flags & HAS_SUBSCRIPTION:
            kind = fields.text("expressionType", "") or "TAG"
            return parse_filter(kind, fields.text("subscription", "") or "*")
        known = self._members.group(group)
        if known is None:
            text = f"the consumer's group info not exist, group: {group}"
            request.answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
            return None
        subscription = known.subscriptions.get(topic)
        if subscription is None:
            text = f"the consumer's subscription not exist, group: {group} topic: {topic}"
            request.answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
            return None
        if subscription.version < fields.int64("subVersion", 0):
            text = "the consumer's subscription not latest"
            request.answer(ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
            return None
        return subscription.filter

    # --- reading ----------------------------------------------------------------------------------------
    def _look(self, pull: _Pull) -> None:
        connection = pull.request.connection
        if connection.is_full:
            connection.when_writable(partial(self.look_again, pull))
            return
        try:
            result = self._core.puller.pull(pull.wanted)
        except TroveError as error:
            if error.spec is not errors.OFFSET_OUT_OF_RANGE:
                raise
            self._answer_moved(pull, error)
            return
        body = b"".join(_records(result, pull.filter))
        if body:
            self._answer(pull, ResponseCode.SUCCESS, "FOUND", result, body)
            self._core.traffic.fetched(pull.wanted.topic, result.message_count, len(body))
            self._counts.got(pull.wanted.topic, pull.group, result.message_count, len(body))
        elif result.next_offset < result.max_offset or result.next_offset > pull.wanted.offset:
            self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", result)
        elif pull.wait_ms and not self._core.long_polls.full and not self._core.long_polls.closed:
            self._wait(pull, result)
        else:
            self._answer(pull, ResponseCode.PULL_NOT_FOUND, NOTHING_CAME, result)

    def look_again(self, pull: _Pull) -> None:
        if not pull.request.is_open:
            return
        try:
            self._look(pull)
        except Exception as error:
            pull.request.fail(error)

    def _wait(self, pull: _Pull, result: PullResult) -> None:
        connection = pull.request.connection
        waiters = self._waiters.get(connection)
        if waiters is None:
            waiters = self._waiters[connection] = set()
            connection.on_lost.append(lambda: self._lost(connection))
        wait = _Wait(self, pull, (result.next_offset, result.min_offset, result.max_offset))
        wanted = pull.wanted
        wait.waiter = self._core.long_polls.wait(wanted.topic, wanted.queue_id, pull.wait_ms, wait)
        waiters.add(wait.waiter)
        pull.request.forget_fields()

    def waits_no_more(self, connection: Connection, waiter: Waiter) -> None:
        self._waiters.get(connection, set()).discard(waiter)

    def _lost(self, connection: Connection) -> None:
        for waiter in self._waiters.pop(connection, ()):
            waiter.cancel()

    # --- answers ----------------------------------------------------------------------------------------
    @staticmethod
    def _answer(pull: _Pull, code: ResponseCode, remark: str, result: PullResult, body: bytes = b"") -> None:
        places = _offsets(result.next_offset, result.min_offset, result.max_offset)
        pull.request.answer(code, remark, places, body)

    @staticmethod
    def _answer_moved(pull: _Pull, error: TroveError) -> None:
        low, high = int(error.fields["min_offset"]), int(error.fields["max_offset"])
        following = low if pull.wanted.offset < low else high
        places = _offsets(following if high > low else 0 if low == 0 else low, low, high)
        pull.request.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_MOVED", places)


def _offsets(following: int, low: int, high: int) -> dict[str, str]:
    """The fields that each answer has: a client fails where one is missing."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(following),
        "minOffset": str(low),
        "maxOffset": str(high),
    }


def _tags(found: Filter) -> tuple[str, ...]:
    """The tags by which the queue can be searched; () if only the filter can decide."""
    if found.kind != "tag" or found.takes_all:
        return ()
    tags = tuple(tag.strip() for tag in found.expression.split("||"))
    return tags if len(tags) <= TAGS_MAX else ()


def _records(result: PullResult, found: Filter) -> Iterator[bytes | memoryview]:
    """The records that match, with the queue offsets at which they lie."""
    if not result.queue_offsets and (found.takes_all or (found.kind == "tag" and _tags(found))):
        yield from result.slices
        return
    offsets = np.frombuffer(result.queue_offsets, "<i8").tolist()
    index = 0
    for run in result.slices:
        batch = RecordBatch.split(run)
        for row, record in enumerate(batch.rows if len(batch) else ()):
            if not found.takes_all:
                begin = record.property_position
                block = bytes(batch.data[begin : begin + record.property_size])
                if not found.matches(parse_properties(block)):
                    index += 1
                    continue
            data = batch.record(row)
            if offsets:
                data = memoryview(bytearray(data))
                data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = offsets[index].to_bytes(8)
            index += 1
            yield data
