"""Consumer groups from the command line, against a real broker with real consumers."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from tests.support.command_line import run_here
from tests.support.rocketmq_client import RawClient
from trovemq.testing import BrokerProcess
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

pytestmark = pytest.mark.slow

SAMPLE = {
    "topics": [
        {"name": "sample-normal", "type": "NORMAL", "queues": 2},
        {"name": "sample-fifo", "type": "FIFO", "queues": 4},
        {"name": "sample-delay", "type": "DELAY"},
    ],
    "groups": [
        {"name": "sample-basic"},
        {"name": "sample-fifo-group", "orderly": True, "maxRetries": 3, "backoffMillis": [1000, 1000]},
    ],
}


class CommandLine:
    """`trovemq --json --server …`, in this process."""

    def __init__(self, server: str) -> None:
        self.server = server

    def run(self, *arguments: str) -> tuple[int, bytes, str]:
        """Exit code, standard output, standard error."""
        return run_here(self.server, *arguments)

    def answer(self, *arguments: str) -> list[dict[str, Any]]:
        code, out, err = self.run(*arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def error(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(*arguments)
        assert (code, out) == (1, b"")
        value = json.loads(err)
        assert isinstance(value, dict)
        return value

    def topic(self, name: str, kind: str = "NORMAL", queues: int = 1) -> str:
        self.answer("topic", "create", name, "--queues", str(queues), "--type", kind)
        return name


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def trovemq(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker.address)


class PushConsumer:
    """A v2 push consumer that answers the broker's commands with `code` (or not at all, where it is None)."""

    def __init__(self, client: RawClient, group: str, topic: str, expression: str = "*") -> None:
        self.consumed: list[v2.Message] = []
        self.code: v2.Code | None = v2.OK
        self._client = client
        self._outgoing: queue.Queue[service.TelemetryCommand | None] = queue.Queue()
        settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
        settings.user_agent.language = v2.PYTHON
        settings.subscription.group.name = group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.type = v2.TAG
        entry.expression.expression = expression
        self._outgoing.put(service.TelemetryCommand(settings=settings))
        self._ready = threading.Event()
        self._stream = client.telemetry(iter(self._outgoing.get, None))
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(15), "the broker answered no settings"
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.put(None)
        self._stream.cancel()
        self._thread.join(15)

    def _answer(self) -> None:
        try:
            for command in self._stream:
                self._ready.set()
                answer = self._answer_to(command)
                if answer is not None and self.code is not None:
                    self._outgoing.put(answer)
        except grpc.RpcError:
            pass  # cancelled

    def _answer_to(self, command: service.TelemetryCommand) -> service.TelemetryCommand | None:
        answer = service.TelemetryCommand(status=v2.Status(code=self.code or v2.OK))
        match command.WhichOneof("command"):
            case "verify_message_command":
                self.consumed.append(command.verify_message_command.message)
                answer.verify_message_result.nonce = command.verify_message_command.nonce
            case "print_thread_stack_trace_command":
                answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
                answer.thread_stack_trace.thread_stack_trace = "worker: waiting"
            case _:
                return None
        return answer


def lag_of(trovemq: CommandLine, group: str, topic: str) -> dict[str, Any]:
    (queue_lag,) = [one for one in trovemq.answer("group", "lag", group) if one["topic"] == topic]
    return queue_lag


def test_a_file_is_applied_once_and_then_there_is_nothing_to_do(trovemq: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "sample.json"
    file.write_text(json.dumps(SAMPLE))
    dry = trovemq.answer("apply", str(file), "--dry-run")
    assert [one["change"] for one in dry] == ["created"] * 5
    assert trovemq.error("topic", "describe", "sample-normal")["error"] == "TOPIC_NOT_FOUND"
    assert [one["change"] for one in trovemq.answer("apply", str(file))] == ["created"] * 5
    (group,) = trovemq.answer("group", "describe", "sample-fifo-group")
    assert (group["orderly"], group["maxRetries"], group["backoffMillis"]) == (True, 3, [1000, 1000])
    assert [one["change"] for one in trovemq.answer("apply", str(file))] == ["unchanged"] * 5
    trovemq.answer("group", "alter", "sample-fifo-group", "--unordered", "--retry-max", "4")
    changed = {one["name"]: one["details"] for one in trovemq.answer("apply", str(file)) if one["details"]}
    assert changed == {"sample-fifo-group": ["unordered -> orderly", "maxRetries 4 -> 3"]}


def test_a_group_lives_from_create_to_delete(trovemq: CommandLine) -> None:
    trovemq.answer("group", "create", "short-lived", "--exponential", "1s,1h,3")
    assert trovemq.error("group", "create", "short-lived")["error"] == "GROUP_EXISTS"
    assert "short-lived" in [one["group"] for one in trovemq.answer("group", "list")]
    trovemq.answer("group", "delete", "short-lived", "--yes")
    assert trovemq.error("group", "describe", "short-lived")["error"] == "GROUP_NOT_FOUND"
    assert trovemq.error("group", "create", "no good")["error"] == "GROUP_ILLEGAL"
    assert trovemq.error("group", "create", "CID_RMQ_SYS_MINE")["error"] == "GROUP_ILLEGAL"


def test_lag_goes_down_by_acknowledgements_and_back_up_by_a_reset(
    broker: BrokerProcess, trovemq: CommandLine
) -> None:
    topic = trovemq.topic("lagging")
    with RawClient(broker.address) as client:
        client.send(topic, *(b"%d" % i for i in range(10)))
        taken = client.receive("lagging-group", topic, count=4)
        client.acknowledge("lagging-group", taken[:3])
    lag = lag_of(trovemq, "lagging-group", topic)
    assert (lag["committed"], lag["nextOffset"], lag["inFlight"], lag["lag"]) == (3, 4, 1, 7)
    assert lag["lagMillis"] > 0
    preview = trovemq.answer("group", "reset", "lagging-group", topic, "--to-min", "--preview")
    assert [(one["offsetBefore"], one["offset"]) for one in preview] == [(3, 0)]
    assert lag_of(trovemq, "lagging-group", topic)["lag"] == 7
    (reset,) = trovemq.answer("group", "reset", "lagging-group", topic, "--to-min")
    assert (reset["offsetBefore"], reset["offset"], reset["inFlight"]) == (3, 0, 1)
    lag = lag_of(trovemq, "lagging-group", topic)
    assert (lag["inFlight"], lag["lag"]) == (0, 10)
    with RawClient(broker.address) as client:
        again = client.receive_until("lagging-group", topic, 10)
    assert sorted(one.body for one in again) == [b"%d" % i for i in range(10)]


def test_messages_that_the_groups_filter_drops_are_no_lag(
    broker: BrokerProcess, trovemq: CommandLine
) -> None:
    topic = trovemq.topic("tagged")
    trovemq.answer("group", "create", "tagged-group")
    with RawClient(broker.address) as client:
        client.send(topic, *(b"x" for _ in range(6)), tag="new")
        client.send(topic, b"y", b"y", tag="paid")
        trovemq.answer("group", "offset", "commit", "tagged-group", topic, "0", "0")
        assert lag_of(trovemq, "tagged-group", topic)["lag"] == 8
        with PushConsumer(client, "tagged-group", topic, "paid"):
            assert lag_of(trovemq, "tagged-group", topic)["lag"] == 2
        assert lag_of(trovemq, "tagged-group", topic)["lag"] == 2, "its last filter still counts"


def test_dead_letters_are_listed_and_sent_again_with_the_result_of_each(
    broker: BrokerProcess, trovemq: CommandLine
) -> None:
    topic, group = trovemq.topic("burying"), "burying-group"
    trovemq.answer("group", "create", group, "--retry-max", "0")
    assert trovemq.answer("dlq", "list", group) == []
    with RawClient(broker.address) as client:
        sent = client.send(topic, b"one", b"two", b"three", keys=["k1", "k2"], tag="t")
        ids = [entry.message_id for entry in sent.entries]
        for one in client.receive_until(group, topic, 3):
            request = service.ForwardMessageToDeadLetterQueueRequest(
                group=v2.Resource(name=group),
                topic=one.topic,
                receipt_handle=one.system_properties.receipt_handle,
                message_id=one.system_properties.message_id,
                delivery_attempt=1,
                max_delivery_attempts=1,
            )
            reply = service.ForwardMessageToDeadLetterQueueResponse
            answer = client.call("ForwardMessageToDeadLetterQueue", request, reply)
            assert answer.status.code == v2.OK, answer.status
        letters = trovemq.answer("dlq", "list", group)
        assert [one["originTopic"] for one in letters] == [topic] * 3
        assert sorted(one["messageId"] for one in letters) == sorted(ids)
        (shown,) = trovemq.answer("dlq", "show", group, "0")
        assert shown["messageId"] == letters[0]["messageId"]
        results = trovemq.answer("dlq", "resend", group, "--offset", "0", "--offset", "9", "--yes")
        assert [(one["offset"], one["topic"], one["error"]) for one in results] == [
            (0, topic, None),
            (9, None, "OFFSET_OUT_OF_RANGE"),
        ]
        (again,) = client.receive_until(group, topic, 1)
        system = again.system_properties
        assert (system.message_id, list(system.keys), system.tag) == (
            letters[0]["messageId"],
            ["k1", "k2"],
            "t",
        )
        assert system.delivery_attempt == 1
        assert again.body in (b"one", b"two", b"three")
    (found,) = trovemq.answer("get", results[0]["offsetMsgId"])
    assert (found["topic"], found["messageId"]) == (topic, system.message_id)
    assert [
        one["error"] for one in trovemq.answer("dlq", "resend", group, "--yes", "--all", "--rate", "50")
    ] == [None] * 3
    listed = trovemq.answer("dlq", "list", group)
    assert len(listed) == 3, "the letters stay"
    assert listed[0]["resentAs"] == results[0]["offsetMsgId"], "and say where they were sent"
    again = trovemq.answer("dlq", "resend", group, "--all", "--yes")
    assert [(one["again"], one["offsetMsgId"]) for one in again] == [
        (True, letter["resentAs"]) for letter in listed
    ], "nothing is doubled"


def test_dead_letters_of_a_misspelt_group_were_an_empty_list(trovemq: CommandLine) -> None:
    assert trovemq.error("dlq", "list", "typo")["error"] == "GROUP_NOT_FOUND"
    assert (
        trovemq.error("group", "reset", "typo", trovemq.topic("reset"), "--to-min")["error"]
        == "GROUP_NOT_FOUND"
    )
    trovemq.answer("group", "create", "without-letters")
    assert trovemq.answer("dlq", "list", "without-letters") == []


def test_a_consumer_consumes_directly_and_nothing_moves(broker: BrokerProcess, trovemq: CommandLine) -> None:
    topic, group = trovemq.topic("directly"), "directly-group"
    with RawClient(broker.address, "direct@1") as client:
        (entry,) = client.send(topic, b"hello").entries
        options = ("--client", "direct@1", "--group", group)
        offline = trovemq.error("consume-directly", entry.message_id, *options)
        assert offline["error"] == "CONSUMER_NOT_ONLINE"
        with PushConsumer(client, group, topic) as consumer:
            (place,) = trovemq.answer("get", topic, "0", "0")
            for identifier in (entry.message_id, place["offsetMsgId"]):
                (answer,) = trovemq.answer("consume-directly", identifier, *options, "--topic", topic)
                assert answer["result"] == "OK"
            assert [one.body for one in consumer.consumed] == [b"hello", b"hello"]
            consumer.code = v2.FAILED_TO_CONSUME_MESSAGE
            (answer,) = trovemq.answer("consume-directly", entry.message_id, *options)
            assert answer["result"] == "FAILED_TO_CONSUME_MESSAGE"
            consumer.code = v2.NOT_IMPLEMENTED
            assert trovemq.error("consume-directly", entry.message_id, *options)["error"] == "NOT_IMPLEMENTED"
            consumer.code = None
            silent = trovemq.error("consume-directly", entry.message_id, *options, "--wait", "0.2")
            assert silent["error"] == "CONSUME_MSG_TIMEOUT"
            consumer.code = v2.OK
            (trace,) = trovemq.answer("stack-trace", *options)
            assert trace["stackTrace"] == "worker: waiting"
            (member,) = trovemq.answer("group", "members", group)
            assert (member["clientId"], member["subscriptions"]) == ("direct@1", {topic: "*"})
            unknown = trovemq.error("consume-directly", "no-such-message", *options)
            assert unknown["error"] == "MESSAGE_NOT_FOUND"
        assert trovemq.answer("group", "offset", "get", group, topic, "0")[0]["offset"] is None
        (first,) = client.receive_until(group, topic, 1)
        assert first.system_properties.delivery_attempt == 1


def test_a_delayed_message_is_found_by_its_key_and_recalled(
    broker: BrokerProcess, trovemq: CommandLine
) -> None:
    topic = trovemq.topic("delayed", "DELAY")
    (sent,) = trovemq.answer("send", topic, "later", "--key", "when", "--deliver-after", "1h")
    assert sent["recallHandle"]
    (pending,) = trovemq.answer("query", topic, "when")
    assert (pending["state"], pending["topic"], pending["messageId"]) == ("PENDING", topic, sent["messageId"])
    assert 0 < pending["deliveryTimestamp"] - time.time() * 1000 <= 3_600_000
    (recalled,) = trovemq.answer("recall", topic, pending["recallHandle"])
    assert recalled["messageId"] == sent["messageId"]
    assert trovemq.answer("query", topic, "when") == []
    assert trovemq.error("recall", topic, "nonsense")["error"] == "RECALL_HANDLE_ILLEGAL"


def test_a_message_that_is_due_is_delivered_and_no_longer_pending(
    broker: BrokerProcess, trovemq: CommandLine
) -> None:
    topic = trovemq.topic("due", "DELAY")
    trovemq.answer("send", topic, "soon", "--key", "when", "--deliver-after", "1500ms")
    with RawClient(broker.address) as client:
        (taken,) = client.receive_until("due-group", topic, 1)
    assert taken.body == b"soon"
    (found,) = trovemq.answer("query", topic, "when")
    assert "state" not in found


def test_a_message_group_is_sent_to_a_fifo_topic(broker: BrokerProcess, trovemq: CommandLine) -> None:
    topic = trovemq.topic("ordered", "FIFO", queues=4)
    for number in range(3):
        trovemq.answer("send", topic, str(number), "--message-group", "customer-7")
    trovemq.answer("group", "create", "ordered-group", "--orderly")
    with RawClient(broker.address) as client:
        taken = client.receive_until("ordered-group", topic, 3)
    assert [(one.body, one.system_properties.message_group) for one in taken] == [
        (str(number).encode(), "customer-7") for number in range(3)
    ]
