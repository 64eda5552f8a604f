"""GroupService on a store in memory: groups and their state, lag, resets, dead letters, commands."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.engine import NOW_MS, SMALL, flush, read_queue, send
from tests.support.memory_broker import TestBroker, open_both
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.server.core.clients import ClientDescription, Subscription
from trovemq_broker.server.native.group_service import GroupService
from trovemq_broker.server.wire.client_commands import ClientCommand, telemetry_answer, telemetry_command
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_broker.timers.recall_handle import decode_recall_handle
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import group_pb2 as pb
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.offsets import ConsumerOffsets
from trovemq_store.topics.subscription_groups import SubscriptionGroups

CONTEXT = cast(Any, None)
DEAD = "%DLQ%billing"


class Stream:
    """A client's telemetry stream: it answers by `answer(command)`."""

    def __init__(self, bench: Bench, client_id: str) -> None:
        self.bench = bench
        self.client_id = client_id
        self.sent: list[service_pb2.TelemetryCommand] = []
        self.code: v2.Code | None = v2.OK

    def send(self, given: ClientCommand) -> None:
        command = telemetry_command(given)
        self.sent.append(command)
        if self.code is None:
            return
        answer = service_pb2.TelemetryCommand(status=v2.Status(code=self.code, message="said"))
        if command.HasField("verify_message_command"):
            answer.verify_message_result.nonce = command.verify_message_command.nonce
        else:
            answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
            answer.thread_stack_trace.thread_stack_trace = "main: here"
        self.bench.commands.answered(self.client_id, *telemetry_answer(answer))

    def may_be_asked(self, topic: str) -> bool:
        return True

    def close(self) -> None:
        pass


class Bench:
    """The service with everything real after it, but for the network and the clock."""

    def __init__(self) -> None:
        self.core = core = TestBroker(opened=open_both(SMALL, ConsumerSettings()))
        self.store, self.model, self.files = core.store, core.model, core.store.files
        self.registry, self.commands, self.changes = core.registry, core.commands, core.group_changes
        self.synced: list[int] = []
        core.sync_by(self.sync)
        self.service = GroupService(core)

    async def sync(self, end: int) -> None:
        self.synced.append(end)
        flush(self.store)
        self.store.dispatch()

    def receive(self, count: int, group: str = "billing") -> list[str]:
        """Receipt handles."""
        request = ReceiveRequest(
            group=self.model.groups.for_use(group, auto_create=True, now_ms=self.core.now_ms),
            topic="orders",
            queue_id=QueueId(0),
            count_max=count,
            invisible_ms=30_000,
            now_ms=self.core.now_ms,
            client_id="c",
        )
        return [one.receipt_handle for one in self.model.delivery.receive(request)]

    def connect(self, client_id: str = "c", expression: str = "*", kind: str = "tag") -> Stream:
        description = ClientDescription(
            client_type=ClientType.PUSH_CONSUMER,
            group="billing",
            subscriptions={"orders": Subscription(kind, expression)},
            language="JAVA",
            version="5.1.0",
            peer="10.0.0.9:50",
        )
        self.registry.settle(client_id, description, self.core.now_ms)
        stream = Stream(self, client_id)
        self.registry.attach(client_id, stream)
        return stream

    def bury(self, **properties: str) -> None:
        self.store.topics.ensure_internal(DEAD, 1)
        self.model.writer.append([NewRecord(DEAD, QueueId(0), b"bad", properties)], self.core.now_ms)
        self.store.dispatch()


async def refused(call: Any) -> ErrorSpec:
    with pytest.raises(TroveError) as caught:
        await call
    return caught.value.spec


# --- the groups themselves ----------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_group_is_on_disk_before_the_reply_with_the_defaults_filled_in() -> None:
    bench = Bench()
    made = await bench.service.create_group(pb.CreateGroupRequest(group="billing"), CONTEXT)
    assert (made.group, made.created, made.settings.retry_max, made.settings.orderly) == (
        "billing",
        True,
        16,
        False,
    )
    assert list(made.settings.backoff_ms)[:3] == [1_000, 5_000, 10_000]
    assert "billing" in SubscriptionGroups.load(bench.files)
    exists = bench.service.create_group(pb.CreateGroupRequest(group="billing"), CONTEXT)
    assert await refused(exists) is errors.GROUP_EXISTS


@pytest.mark.asyncio
async def test_settings_are_replaced_as_a_whole() -> None:
    bench = Bench()
    first = pb.GroupSettings(orderly=True, retry_max=3, backoff_ms=[10, 20])
    await bench.service.create_group(pb.CreateGroupRequest(group="g", settings=first), CONTEXT)
    second = pb.GroupSettings(retry_max=-1, exponential=True, backoff_initial_ms=7)
    altered = await bench.service.alter_group(pb.AlterGroupRequest(group="g", settings=second), CONTEXT)
    wanted = pb.GroupSettings(
        retry_max=16,
        exponential=True,
        backoff_initial_ms=7,
        backoff_max_ms=7_200_000,
        backoff_multiplier=2.0,
    )
    assert altered.settings == wanted
    described = await bench.service.describe_group(pb.DescribeGroupRequest(group="g"), CONTEXT)
    assert described.settings == wanted


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("group", "settings", "spec"),
    [
        ("", pb.GroupSettings(), errors.GROUP_ILLEGAL),
        ("x" * 121, pb.GroupSettings(), errors.GROUP_ILLEGAL),
        ("TOOLS_CONSUMER", pb.GroupSettings(), errors.GROUP_ILLEGAL),
        ("g", pb.GroupSettings(retry_max=-2), errors.REQUEST_ILLEGAL),
        ("g", pb.GroupSettings(retry_max=1 << 30), errors.REQUEST_ILLEGAL),
        ("g", pb.GroupSettings(backoff_ms=[-1]), errors.REQUEST_ILLEGAL),
        ("g", pb.GroupSettings(backoff_ms=[1] * 65), errors.REQUEST_ILLEGAL),
        ("g", pb.GroupSettings(backoff_ms=[1], exponential=True), errors.REQUEST_ILLEGAL),
        ("g", pb.GroupSettings(exponential=True, backoff_multiplier=float("nan")), errors.REQUEST_ILLEGAL),
    ],
)
async def test_a_wrong_group_is_not_made(group: str, settings: pb.GroupSettings, spec: ErrorSpec) -> None:
    bench = Bench()
    assert (
        await refused(
            bench.service.create_group(pb.CreateGroupRequest(group=group, settings=settings), CONTEXT)
        )
        is spec
    )
    assert len(bench.model.groups) == 0


@pytest.mark.asyncio
async def test_what_is_not_known_is_not_found() -> None:
    service = Bench().service
    calls = [
        service.alter_group(pb.AlterGroupRequest(group="g"), CONTEXT),
        service.delete_group(pb.DeleteGroupRequest(group="g"), CONTEXT),
        service.describe_group(pb.DescribeGroupRequest(group="g"), CONTEXT),
        service.list_members(pb.ListMembersRequest(group="g"), CONTEXT),
        service.get_lag(pb.GetLagRequest(group="g"), CONTEXT),
    ]
    assert [await refused(call) for call in calls] == [errors.GROUP_NOT_FOUND] * 5


@pytest.mark.asyncio
async def test_lists_have_groups_of_the_table_of_offsets_and_of_members() -> None:
    bench = Bench()
    await bench.service.create_group(pb.CreateGroupRequest(group="made"), CONTEXT)
    bench.store.offsets.commit("pulls", "orders", QueueId(0), QueueOffset(0))
    bench.store.offsets.commit("TOOLS_CONSUMER", "orders", QueueId(0), QueueOffset(0))
    bench.connect()
    found = (await bench.service.list_groups(pb.ListGroupsRequest(), CONTEXT)).groups
    assert [(one.group, one.created, list(one.topics), one.member_count) for one in found] == [
        ("billing", False, ["orders"], 1),
        ("made", True, [], 0),
        ("pulls", False, ["orders"], 0),
    ]


@pytest.mark.asyncio
async def test_a_deleted_group_starts_over_and_its_dead_letters_stay() -> None:
    bench = Bench()
    for _ in range(3):
        send(bench.store, b"x")
    bench.receive(3)
    bench.bury(DLQ_ORIGIN_TOPIC="orders")
    bench.store.topics.ensure_internal("%RETRY%billing_orders", 1)
    bench.model.writer.append([NewRecord("%RETRY%billing_orders", QueueId(0), b"again")], NOW_MS)
    bench.store.dispatch()
    bench.store.offsets.commit("other", "orders", QueueId(0), QueueOffset(1))
    await bench.service.delete_group(pb.DeleteGroupRequest(group="billing"), CONTEXT)
    assert bench.model.groups.get("billing") is None
    assert bench.model.delivery.in_flight_count == 0
    assert bench.store.offsets.groups() == ["other"]
    assert ConsumerOffsets.load(bench.files).groups() == ["other"]
    assert read_queue(bench.store, "%RETRY%billing_orders") == []
    assert len(read_queue(bench.store, DEAD)) == 1


@pytest.mark.asyncio
async def test_the_retry_topic_of_another_group_is_not_taken_for_ones_own() -> None:
    bench = Bench()
    bench.store.offsets.commit("a", "orders", QueueId(0), QueueOffset(0))
    bench.store.offsets.commit("a_orders", "orders", QueueId(0), QueueOffset(0))
    bench.store.topics.ensure_internal("%RETRY%a_orders", 1)
    await bench.service.delete_group(pb.DeleteGroupRequest(group="a"), CONTEXT)
    assert "%RETRY%a_orders" in bench.store.topics, "it is the classic retry topic of a_orders"


@pytest.mark.asyncio
async def test_members_with_what_they_subscribe_to() -> None:
    bench = Bench()
    bench.connect(expression="paid")
    (member,) = (await bench.service.list_members(pb.ListMembersRequest(group="billing"), CONTEXT)).members
    assert (member.client_id, member.client_type, member.language, member.version) == (
        "c",
        "PUSH_CONSUMER",
        "JAVA",
        "5.1.0",
    )
    assert (member.address, member.last_heartbeat, dict(member.subscriptions)) == (
        "10.0.0.9:50",
        NOW_MS,
        {"orders": "paid"},
    )


# --- lag and reset ------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_lag_counts_what_is_in_flight_and_what_the_filter_takes() -> None:
    bench = Bench()
    for number in range(10):
        send(bench.store, b"x", NOW_MS + number, tag="paid" if number % 3 == 0 else "new")
    bench.core.now_ms = NOW_MS + 100
    bench.model.groups.for_use("billing", auto_create=True, now_ms=NOW_MS)
    bench.store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(2))
    bench.connect(expression="paid")
    (first, *others) = (await bench.service.get_lag(pb.GetLagRequest(group="billing"), CONTEXT)).queues
    assert (first.topic, first.queue_id, first.committed, first.max_offset) == ("orders", 0, 2, 10)
    assert (first.lag, first.lag_ms, first.estimated) == (3, 97, False)
    assert all((queue.lag, queue.committed) == (0, -1) for queue in others)
    bench.receive(2)
    (first, *_) = (
        await bench.service.get_lag(pb.GetLagRequest(group="billing", topic="orders"), CONTEXT)
    ).queues
    assert (first.in_flight, first.next_offset, first.lag) == (2, 4, 2 + 2)
    missing = bench.service.get_lag(pb.GetLagRequest(group="billing", topic="nothing"), CONTEXT)
    assert await refused(missing) is errors.TOPIC_NOT_FOUND


@pytest.mark.asyncio
async def test_a_preview_forgets_nothing_and_a_reset_what_is_in_flight() -> None:
    bench = Bench()
    for number in range(4):
        send(bench.store, b"x", NOW_MS + number)
    bench.receive(3)
    request = pb.ResetGroupRequest(
        group="billing", topic="orders", queue_id=0, timestamp=NOW_MS + 1, preview=True
    )
    (entry,) = (await bench.service.reset_group(request, CONTEXT)).entries
    assert entry.offset == 1
    assert bench.model.delivery.in_flight_count == 3
    request.preview = False
    (entry,) = (await bench.service.reset_group(request, CONTEXT)).entries
    assert (entry.offset, entry.in_flight) == (1, 3)
    assert bench.model.delivery.in_flight_count == 0
    assert ConsumerOffsets.load(bench.files).get("billing", "orders", QueueId(0)) == 1
    assert len(bench.receive(10)) == 3, "offsets 1 to 3 come (again)"


@pytest.mark.asyncio
async def test_a_reset_without_a_target_is_refused() -> None:
    service = Bench().service
    for request in (
        pb.ResetGroupRequest(group="g", topic="orders"),
        pb.ResetGroupRequest(group="g", topic="orders", to_min=False),
    ):
        assert await refused(service.reset_group(request, CONTEXT)) is errors.REQUEST_ILLEGAL


@pytest.mark.asyncio
async def test_a_misspelt_group_was_reset_without_a_word() -> None:
    service = Bench().service
    for preview in (True, False):
        request = pb.ResetGroupRequest(group="typo", topic="orders", to_min=True, preview=preview)
        assert await refused(service.reset_group(request, CONTEXT)) is errors.GROUP_NOT_FOUND


# --- dead letters -------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_each_letter_has_its_result_and_the_reply_waits_for_the_disk() -> None:
    bench = Bench()
    bench.bury(DLQ_ORIGIN_TOPIC="orders", UNIQ_KEY="U1")
    bench.bury(UNIQ_KEY="U2")
    request = pb.ResendDeadLettersRequest(group="billing", offsets=[0, 1, 7, 0])
    entries = (await bench.service.resend_dead_letters(request, CONTEXT)).entries
    assert [(one.offset, one.topic, one.error) for one in entries] == [
        (0, "orders", ""),
        (1, "", "PROPERTY_ILLEGAL"),
        (7, "", "OFFSET_OUT_OF_RANGE"),
    ]
    (sent,) = read_queue(bench.store)
    assert entries[0].offset_msg_id == sent.offset_msg_id
    assert bench.synced == [bench.store.end_offset]
    bench.store.dispatch()
    again = (await bench.service.resend_dead_letters(request, CONTEXT)).entries
    assert (again[0].again, again[0].offset_msg_id) == (True, sent.offset_msg_id)
    assert len(read_queue(bench.store)) == 1, "nothing is doubled"
    request = pb.ResendDeadLettersRequest(group="billing", offsets=[0, 1])
    (found, unknown) = (await bench.service.find_resent_dead_letters(request, CONTEXT)).entries
    assert (found.offset, found.offset_msg_id) == (0, sent.offset_msg_id)
    assert unknown.error == "PROPERTY_ILLEGAL"


@pytest.mark.asyncio
async def test_a_sync_that_fails_is_the_result_of_what_it_would_have_covered() -> None:
    bench = Bench()
    bench.bury(DLQ_ORIGIN_TOPIC="orders")

    async def fail(_end: int) -> None:
        raise TroveError(errors.FLUSH_DISK_TIMEOUT, "slow")

    bench.core.sync_by(fail)
    request = pb.ResendDeadLettersRequest(group="billing", offsets=[0, 1])
    entries = (await bench.service.resend_dead_letters(request, CONTEXT)).entries
    assert [one.error for one in entries] == ["FLUSH_DISK_TIMEOUT", "OFFSET_OUT_OF_RANGE"]
    assert entries[0].offset_msg_id, "the message is in the log"


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [0, 1_001])
async def test_resending_none_or_too_many_is_refused(count: int) -> None:
    bench = Bench()
    bench.bury(DLQ_ORIGIN_TOPIC="orders")
    request = pb.ResendDeadLettersRequest(group="billing", offsets=range(count))
    assert await refused(bench.service.resend_dead_letters(request, CONTEXT)) is errors.REQUEST_ILLEGAL


@pytest.mark.asyncio
async def test_as_many_dead_letters_as_a_call_may_name_are_sent() -> None:
    bench = Bench()
    bench.bury(DLQ_ORIGIN_TOPIC="orders")
    request = pb.ResendDeadLettersRequest(group="billing", offsets=range(1_000))
    entries = (await bench.service.resend_dead_letters(request, CONTEXT)).entries
    assert [one.error for one in entries] == ["", *["OFFSET_OUT_OF_RANGE"] * 999]


# --- commands to consumers ----------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_message_is_consumed_directly_by_either_id_and_nothing_moves() -> None:
    bench = Bench()
    sent = send(bench.store, b"hello", unique_key="U1")
    stream = bench.connect()
    for identifier in (*sent.offset_msg_ids(), "U1"):
        request = pb.ConsumeDirectlyRequest(
            client_id="c", group="billing", topic="orders", message=identifier
        )
        reply = await bench.service.consume_directly(request, CONTEXT)
        assert (reply.result, reply.message) == ("OK", "said")
    message = stream.sent[0].verify_message_command.message
    assert (message.topic.name, message.body, message.system_properties.message_id) == (
        "orders",
        b"hello",
        "U1",
    )
    assert bench.store.offsets.get("billing", "orders", QueueId(0)) is None
    assert bench.model.delivery.in_flight_count == 0


@pytest.mark.asyncio
async def test_a_dead_letter_is_consumed_under_the_topic_that_the_consumer_knows() -> None:
    bench = Bench()
    bench.bury(DLQ_ORIGIN_TOPIC="orders", UNIQ_KEY="U1")
    stream = bench.connect()
    request = pb.ConsumeDirectlyRequest(client_id="c", group="billing", message="U1")
    stream.code = v2.FAILED_TO_CONSUME_MESSAGE
    assert (await bench.service.consume_directly(request, CONTEXT)).result == "FAILED_TO_CONSUME_MESSAGE"
    assert stream.sent[0].verify_message_command.message.topic.name == "orders"


@pytest.mark.asyncio
async def test_commands_that_get_no_result_say_why() -> None:
    bench = Bench()
    send(bench.store, b"hello", unique_key="U1")
    request = pb.ConsumeDirectlyRequest(client_id="c", group="billing", message="U1", timeout_ms=1)
    assert await refused(bench.service.consume_directly(request, CONTEXT)) is errors.CONSUMER_NOT_ONLINE
    stream = bench.connect()
    stream.code = None
    assert await refused(bench.service.consume_directly(request, CONTEXT)) is errors.CONSUME_MSG_TIMEOUT
    stream.code = v2.NOT_IMPLEMENTED
    assert await refused(bench.service.consume_directly(request, CONTEXT)) is errors.NOT_IMPLEMENTED
    request.message = "U9"
    assert await refused(bench.service.consume_directly(request, CONTEXT)) is errors.MESSAGE_NOT_FOUND
    request.group = ""
    assert await refused(bench.service.consume_directly(request, CONTEXT)) is errors.GROUP_ILLEGAL


@pytest.mark.asyncio
async def test_a_stack_trace_comes_from_the_client() -> None:
    bench = Bench()
    bench.connect()
    request = pb.PrintStackTraceRequest(client_id="c", group="billing")
    assert (await bench.service.print_thread_stack_trace(request, CONTEXT)).stack_trace == "main: here"


# --- delayed messages ---------------------------------------------------------------------------------
def delay(bench: Bench, after_ms: int, topic: str = "orders", **properties: str) -> None:
    record = NewRecord(topic, QueueId(0), b"later", properties)
    bench.model.timers.schedule(record, bench.core.now_ms + after_ms, bench.core.now_ms)
    bench.store.dispatch()
    bench.model.timers.catch_up()


async def found(bench: Bench, key: str, topic: str = "orders") -> list[tuple[str, int]]:
    reply = await bench.service.find_delayed(pb.FindDelayedRequest(topic=topic, key=key), CONTEXT)
    assert reply.complete
    keys = [decode_message(entry.record).unique_key or "" for entry in reply.entries]
    return [(key, entry.delivery_timestamp - NOW_MS) for key, entry in zip(keys, reply.entries, strict=True)]


@pytest.mark.asyncio
async def test_what_waits_is_found_by_either_key_until_delivered_or_recalled() -> None:
    bench = Bench()
    bench.store.topics.create("other", 1)
    delay(bench, 60_000, UNIQ_KEY="U1", KEYS="a b")
    delay(bench, 5_000, UNIQ_KEY="U2", KEYS="b")
    delay(bench, 90_000, "other", UNIQ_KEY="U3", KEYS="b")
    assert await found(bench, "b") == [("U2", 5_000), ("U1", 60_000)]
    assert await found(bench, "U1") == [("U1", 60_000)]
    assert await found(bench, "b", "other") == [("U3", 90_000)]
    assert await found(bench, "c") == []
    bench.core.now_ms = NOW_MS + 5_000
    assert bench.model.timers.deliver_due(bench.core.now_ms) == 1
    bench.store.dispatch()
    assert await found(bench, "b") == [("U1", 60_000)]


@pytest.mark.asyncio
async def test_the_handle_of_what_waits_recalls_it() -> None:
    bench = Bench()
    delay(bench, 60_000, UNIQ_KEY="U1", KEYS="a")
    reply = await bench.service.find_delayed(pb.FindDelayedRequest(topic="orders", key="a"), CONTEXT)
    handle = decode_recall_handle(reply.entries[0].recall_handle)
    bench.model.timers.recall(handle.topic, handle.deliver_ms, handle.message_id, bench.core.now_ms)
    bench.store.dispatch()
    bench.model.timers.catch_up()
    assert await found(bench, "a") == []


@pytest.mark.asyncio
async def test_what_waits_for_a_topic_that_is_not_here_is_an_error() -> None:
    bench = Bench()
    request = pb.FindDelayedRequest(topic="nothing", key="a")
    assert await refused(bench.service.find_delayed(request, CONTEXT)) is errors.TOPIC_NOT_FOUND
