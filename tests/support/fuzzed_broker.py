"""A broker with messages that gets hostile requests, and its invariants then:

- a call ends with OK or a documented error: nothing unexpected is raised, no code means an internal fault;
- a call ends, within a minute of the services' own clock and a second of processor time;
- everything that waits or is open belongs to a call under way; tables stay within their limits;
- after a power cut the store opens and has every acknowledged message at its place, and no other.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from tests.support.fuzz_ledger import ADMIN, MESSAGING, NATIVE, Acknowledged
from tests.support.fuzzing import MessageMaker, Values, request_bytes
from tests.support.memory_broker import message, receive_request
from tests.support.rocketmq_service import consumer_settings
from tests.support.services_here import ADVERTISED, BrokerServices, CallContext, Outcome, clock_ms
from trovemq_broker.admin.drain import DrainState
from trovemq_broker.daemon.opening import open_consumer_state
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.security.changes import add_user
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.authentication.scram import SALT_SIZE
from trovemq_proto.receipts import handle_of
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, consumer_pb2, group_pb2, producer_pb2, query_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.index.trees.store_trees import TREE_NAMES

__all__ = ["ADMIN", "MESSAGING", "NATIVE", "FuzzedBroker", "check_outcome"]

TOPICS: Final = {
    "orders": "NORMAL",
    "payments": "MIXED",
    "steps": "FIFO",
    "later": "DELAY",
    "halves": "TRANSACTION",
}
TOPIC_COUNT_MAX: Final = 300
CONSUME: Final = f"{NATIVE}ConsumerService.Consume"
PRODUCER: Final = f"{NATIVE}ProducerService."
WITH_CLIENT_ID: Final = (CONSUME, f"{PRODUCER}PrepareHalf", f"{PRODUCER}CheckHalves")
"""Native calls whose metadata name their client."""
CLIENT: Final = "client-1"
CLIENT_METADATA: Final = (("x-mq-client-id", CLIENT), ("x-mq-language", "PYTHON"))
CALL_S_MAX: Final = 60.0  # of the services' clock
SLOW_CALL_S_MAX: Final = 5_000.0  # a scrub or backup at the lowest rate
PROCESSOR_S_MAX: Final = 1.0
FED_EVERY: Final = 50  # inputs
PAUSES_S: Final = (0, 0, 0, 0.1, 0.1, 1, 1, 15)
"""Between them: some leases end in the longest."""

PAIR_BLOCKS: Final = 36
QUEUE_STATE_BLOCKS: Final = 15
GROUP_BLOCKS: Final = 8
CONSUME_QUEUE_BLOCKS: Final = 36
HALF_BLOCKS: Final = 6
CHECK_BLOCKS: Final = 2
"""Memory blocks that the broker keeps of a (group, topic), of each of its queues, of a group, of a consume
queue, of an open transaction or one that has just ended, and of its next check."""

FAULT_SYMBOLS: Final = frozenset(
    [
        "UNKNOWN_ERROR",
        "STORE_FAILED",
        "STORE_LOCKED",
        "STORE_NEWER",
        "STORE_SETTINGS_MISMATCH",
        "DISK_FULL",
        "CREATE_MAPPED_FILE_FAILED",
        "FLUSH_DISK_TIMEOUT",
        "SERVICE_NOT_AVAILABLE",
    ]
)
FAULT_CODES: Final = frozenset((v2.INTERNAL_ERROR, v2.INTERNAL_SERVER_ERROR, v2.CODE_UNSPECIFIED))
SYMBOLS: Final = frozenset(spec.symbol for spec in errors.ERRORS) - FAULT_SYMBOLS


Asked = tuple[Sequence[bytes], Sequence[tuple[str, Any]]]
"""The requests of a call, and its metadata."""


def check_outcome(name: str, outcome: Outcome, replies: Sequence[Any]) -> None:
    """The call ended as its documentation says."""
    said = f"{name}: {outcome.code} {outcome.symbol} {outcome.details[:300]}"
    if outcome.symbol:
        assert outcome.symbol in SYMBOLS, said
    elif outcome.code == "INTERNAL":  # how the reference server refuses a type of client
        assert name == f"{MESSAGING}Telemetry", said
        assert "type" in outcome.details, said
    else:
        assert outcome.code in ("OK", "UNPARSED", "UNIMPLEMENTED") or name == f"{MESSAGING}Telemetry", said
        assert outcome.code != "UNKNOWN", said
    for reply in replies:
        fields = reply.DESCRIPTOR.fields_by_name
        if "error" in fields and fields["error"].message_type is not None and reply.HasField("error"):
            assert reply.error.symbol in SYMBOLS, f"{name}: {reply.error}"
        if "status" in fields and fields["status"].message_type is not None and reply.HasField("status"):
            assert reply.status.code not in FAULT_CODES, f"{name}: {reply.status}"
        for entry in reply.entries if "entries" in fields and fields["entries"].message_type else ():
            status = getattr(entry, "status", None)
            assert status is None or status.code not in FAULT_CODES, f"{name}: {status}"


def consume_frames(group: str, topic: str) -> list[consumer_pb2.ConsumeFrame]:
    """A stream that receives some messages, and ends when they were sent to it."""
    start = consumer_pb2.ConsumeFrame(group=group, topic=topic, credit_messages=4, credit_bytes=100_000)
    start.start.invisible_ms = 15_000
    return [start, *(consumer_pb2.ConsumeFrame(group=group, topic=topic) for _ in range(9))]


class LiveContext(CallContext):
    """A client that stays connected, and answers some of the broker's commands."""

    def __init__(self, source: random.Random) -> None:
        super().__init__((), CLIENT_METADATA)
        self._source = source
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    async def read(self) -> Any:
        return await self.sent.get()

    async def write(self, message: Any) -> None:
        answer = service_pb2.TelemetryCommand()
        if message.HasField("print_thread_stack_trace_command"):
            answer.thread_stack_trace.nonce = message.print_thread_stack_trace_command.nonce
            answer.thread_stack_trace.thread_stack_trace = "at x"
        elif message.HasField("verify_message_command"):
            answer.status.code = v2.OK
            answer.verify_message_result.nonce = message.verify_message_command.nonce
        else:
            return
        if self._source.random() < 0.7:
            self.sent.put_nowait(answer)


def add_first_user(calls: BrokerServices) -> None:
    """Without any user a broker refuses log-ins: it has not joined its cluster yet."""
    table = calls.all._users._security.table
    user = new_user("root", UserKind.SUPER, b"secret-of-root", salt=bytes(SALT_SIZE), now_ms=0)
    change = table.begin(add_user(table.state, user))
    change.run()
    table.finish(change)


class FuzzedBroker:
    """A broker, its clients' knowledge of it, and its acknowledged messages."""

    def __init__(self, files: FileSystem, settings: BrokerSettings, source: random.Random) -> None:
        self.settings = settings
        self.source = source
        self.calls = BrokerServices(files, settings)
        add_first_user(self.calls)
        self.values = Values()
        self.maker = MessageMaker(source, self.values, body_size=settings.body_size_max)
        self.acknowledged = Acknowledged()
        self.outcomes: Counter[str] = Counter()
        """How the calls ended: by symbol of the error table or gRPC's code."""
        self._latest: dict[str, deque[Asked]] = defaultdict(lambda: deque(maxlen=64))
        self._recent: list[bytes] = []
        self._valid: dict[str, deque[Message]] = defaultdict(lambda: deque(maxlen=16))
        self._fed = 0
        self._live = LiveContext(source)
        self.values.texts["topic"] += [*TOPICS, "orders", "orders"]
        self.values.texts["group"] += ["workers", "workers", "inorder"]

    # --- the inputs -----------------------------------------------------------------------------------
    async def inputs(self, name: str, count: int) -> None:
        """`count` inputs to the method (full name)."""
        method = self.calls.methods[name]
        done = 0
        while done < count:
            length = self.source.randrange(1, 9) if method.client_streaming else 1
            requests = [
                request_bytes(self.maker, self.source, method.input_type, self._recent, self._templates(name))
                for _ in range(min(length, count - done))
            ]
            metadata = self._metadata(name)
            self._latest[name].append((requests, metadata))
            outcome = await self.call(name, requests, metadata)
            self.outcomes[outcome.symbol or outcome.code] += 1
            if done // FED_EVERY != (done + len(requests)) // FED_EVERY:
                await self.feed()
            done += len(requests)

    def _serve_again(self) -> None:
        """A broker that was drained by an input, or asked to stop, would refuse all that follows."""
        drain = self.calls.all.drain_control
        if drain.state is DrainState.STOPPING:
            drain.state = DrainState.DRAINED
        drain.undo()

    def latest_of(self, name: str) -> Sequence[Asked]:
        """The latest inputs to the method."""
        return self._latest[name]

    def kept_kib(self) -> int:
        """Of the inputs that are kept here, to be sent again or damaged: some have a megabyte."""
        kept = [*self._recent, *(one for asked in self._latest.values() for all_, _ in asked for one in all_)]
        return sum({id(one): len(one) for one in kept}.values()) >> 10

    def _metadata(self, name: str) -> Sequence[tuple[str, Any]]:
        source = self.source
        if (name.startswith(NATIVE) and name not in WITH_CLIENT_ID) or source.random() < 0.02:
            return ()
        if source.random() < 0.9:
            client: Any = source.choice(self.values.texts["client"])
        else:
            client = source.choice(("", " ", "c" * 255, "c" * 256, "c" * 5_000, b"\xff\xfe", "\x1b[31m"))
        return (("x-mq-client-id", client), ("x-mq-language", source.choice(("JAVA", "PYTHON", "?"))))

    async def call(
        self, name: str, requests: Sequence[bytes], metadata: Sequence[tuple[str, Any]] = ()
    ) -> Outcome:
        """One call, checked, and learnt from."""
        slow = "StoreService" in name
        started = time.process_time()
        async with asyncio.timeout(SLOW_CALL_S_MAX if slow else CALL_S_MAX):
            outcome = await self.calls.call(name, requests, metadata)
        took_s = time.process_time() - started
        if "BrokerService" in name:
            self._serve_again()
        assert took_s < PROCESSOR_S_MAX or slow, f"{name} took {took_s:.1f} s of the processor"
        replies = [self.calls.parse(name, reply) for reply in outcome.replies]
        check_outcome(name, outcome, replies)
        if outcome.code == "OK":
            self.acknowledged.learn(name, outcome, replies)
            self._learn(name, outcome, replies)
        return outcome

    def _templates(self, name: str) -> list[Message]:
        return [*self._valid[name]]

    def _learn(self, name: str, outcome: Outcome, replies: Sequence[Any]) -> None:
        """Values that a client can use later."""
        learn = self.values.learn
        if name == f"{MESSAGING}ReceiveMessage":
            for reply in replies:
                if reply.HasField("message"):
                    learn("handle", reply.message.system_properties.receipt_handle)
                    learn("id", reply.message.system_properties.message_id)
                    self._valid_with_handle(outcome.requests[0], reply.message)
        elif name == f"{MESSAGING}SendMessage":
            for sent, entry in zip(
                getattr(outcome.requests[0], "messages", ()), replies[0].entries, strict=False
            ):
                self._valid_after_send(sent, entry)
        elif name == f"{PRODUCER}SendDelayed" and replies[0].recall_handle:
            learn("recall", replies[0].recall_handle)
            recall = producer_pb2.RecallRequest(
                topic=outcome.requests[0].topic, recall_handle=replies[0].recall_handle
            )
            self._valid[f"{PRODUCER}Recall"].append(recall)
        elif name == f"{PRODUCER}PrepareHalf":
            learn("transaction", replies[0].transaction_id)
            end = producer_pb2.EndHalfRequest(
                topic=outcome.requests[0].topic,
                transaction_id=replies[0].transaction_id,
                commit=self.source.random() < 0.5,
            )
            self._valid[f"{PRODUCER}EndHalf"].append(end)
        elif name == CONSUME:
            self._valid_after_batches(outcome.requests, [run for reply in replies for run in reply.runs])
        elif name == f"{NATIVE}QueryService.QueryByKey" and replies and replies[-1].cursor:
            learn("cursor", replies[-1].cursor)
            query = query_pb2.QueryByKeyRequest()
            query.CopyFrom(outcome.requests[0])
            query.cursor = replies[-1].cursor
            self._valid[name].append(query)
        elif name in (f"{NATIVE}AdminService.CreateTopic", f"{NATIVE}GroupService.CreateGroup"):
            kind = "topic" if "Topic" in name else "group"
            learn(kind, getattr(outcome.requests[0], kind))
            learn(kind, "orders" if kind == "topic" else "workers")

    def _valid_after_batches(self, asked: Sequence[Any], runs: Sequence[Any]) -> None:
        first = consume_frames(asked[0].group, asked[0].topic)[0]
        self._valid[CONSUME].append(first)
        for run in runs:
            self.values.learn("receipt", run.receipt)
            later = consumer_pb2.ConsumeFrame(group=first.group, topic=first.topic, credit_messages=3)
            kind = self.source.choice((consumer_pb2.ACKNOWLEDGE, consumer_pb2.RETURN))
            ranges = (run.first_offset, run.count)
            later.settlements.add(kind=kind, receipt=run.receipt, ranges=ranges, suspend=run.count > 1)
            for kind in (consumer_pb2.EXTEND, consumer_pb2.DEAD_LETTER):
                handle = handle_of(run.receipt, run.first_offset)
                later.settlements.add(kind=kind, handle=handle, invisible_ms=1_000)
            self._valid[CONSUME].append(later)

    def _valid_with_handle(self, asked: Any, received: v2.Message) -> None:
        system = received.system_properties
        common = {"group": asked.group, "topic": received.topic, "receipt_handle": system.receipt_handle}
        entry = service_pb2.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        change = service_pb2.ChangeInvisibleDurationRequest(message_id=system.message_id, **common)
        change.invisible_duration.FromSeconds(15)
        valid = {
            "AckMessage": service_pb2.AckMessageRequest(
                group=asked.group, topic=received.topic, entries=[entry]
            ),
            "ChangeInvisibleDuration": change,
            "ForwardMessageToDeadLetterQueue": service_pb2.ForwardMessageToDeadLetterQueueRequest(
                message_id=system.message_id, **common
            ),
            "ReceiveMessage": receive_request("orders", group="workers", polling_ms=0),
            "Heartbeat": service_pb2.HeartbeatRequest(group=asked.group, client_type=v2.PUSH_CONSUMER),
            "Telemetry": service_pb2.TelemetryCommand(settings=consumer_settings()),
        }
        for name, request in valid.items():
            self._valid[f"{MESSAGING}{name}"].append(request)
        direct = group_pb2.ConsumeDirectlyRequest(
            client_id=CLIENT, group="workers", topic="orders", message=system.message_id
        )
        self._valid[f"{NATIVE}GroupService.ConsumeDirectly"].append(direct)
        resend = group_pb2.ResendDeadLettersRequest(group="workers", offsets=[self._fed % 8, 1])
        self._valid[f"{NATIVE}GroupService.ResendDeadLetters"].append(resend)

    def _valid_after_send(self, sent: v2.Message, entry: Any) -> None:
        if entry.transaction_id:
            self.values.learn("transaction", entry.transaction_id)
            end = service_pb2.EndTransactionRequest(
                topic=sent.topic,
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=self.source.choice((v2.COMMIT, v2.ROLLBACK)),
            )
            self._valid[f"{MESSAGING}EndTransaction"].append(end)
        if entry.recall_handle:
            self.values.learn("recall", entry.recall_handle)
            recall = service_pb2.RecallMessageRequest(topic=sent.topic, recall_handle=entry.recall_handle)
            self._valid[f"{MESSAGING}RecallMessage"].append(recall)

    # --- names for the inputs ------------------------------------------------------------------------------
    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Its background work runs, and a client is connected, for the time of the block."""
        async with self.calls.working():
            handler = self.calls.handler(f"{MESSAGING}Telemetry")
            live = asyncio.create_task(handler.stream_stream(None, self._live))
            self._live.sent.put_nowait(service_pb2.TelemetryCommand(settings=consumer_settings()))
            await self.feed()
            yield
            await self.feed()
            self._live.sent.put_nowait(grpc.aio.EOF)
            await live
            await self.calls.core.settle()

    async def feed(self) -> None:
        """Makes topics, groups, messages, handles, transactions and a cursor; time continues."""
        self._fed += 1
        for topic, kind in TOPICS.items():
            if self.calls.store.topics.get(topic) is None:
                create = admin_pb2.CreateTopicRequest(topic=topic, queue_count=4, message_type=kind)
                await self._do(f"{NATIVE}AdminService.CreateTopic", create)
        for group in ("workers", "inorder"):
            if group not in self.calls.model.groups:
                group_settings = group_pb2.GroupSettings(orderly=group == "inorder", retry_max=-1)
                wanted = group_pb2.CreateGroupRequest(group=group, settings=group_settings)
                await self._do(f"{NATIVE}GroupService.CreateGroup", wanted)
        await self._send()
        if self._fed % 3 == 0 and self._valid[f"{MESSAGING}ForwardMessageToDeadLetterQueue"]:
            await self._do(
                f"{MESSAGING}ForwardMessageToDeadLetterQueue",
                self._valid[f"{MESSAGING}ForwardMessageToDeadLetterQueue"][-1],
            )
        for topic, group in (("orders", "workers"), ("steps", "inorder")):
            receive = receive_request(topic, group=group, batch_size=8, polling_ms=0, invisible_ms=15_000)
            await self._do(f"{MESSAGING}ReceiveMessage", receive)
        consume = [one.SerializeToString() for one in consume_frames("workers", "orders")]
        await self.call(CONSUME, consume, CLIENT_METADATA)
        query = query_pb2.QueryByKeyRequest(topic="orders", key="k1", messages_max=1)
        await self._do(f"{NATIVE}QueryService.QueryByKey", query)
        await asyncio.sleep(self.source.choice(PAUSES_S))

    async def _send(self) -> None:
        number = f"{self._fed:04}"
        due_ms = clock_ms() + (500 * (self._fed % 40) if self._fed % 2 else 3_600_000)
        for one in (
            message(b"plain %d" % self._fed, "orders", message_id=f"PLAIN{number}", keys=["k1"], tag="a"),
            message(b"step %d" % self._fed, "steps", message_id=f"STEP{number}", message_group="g1"),
            message(b"later %d" % self._fed, "later", message_id=f"LATER{number}", deliver_ms=due_ms),
            message(
                b"half %d" % self._fed, "halves", message_id=f"HALF{number}", message_type=v2.TRANSACTION
            ),
        ):
            await self._do(f"{MESSAGING}SendMessage", service_pb2.SendMessageRequest(messages=[one]))
        await self._produce(number, due_ms)

    async def _produce(self, number: str, due_ms: int) -> None:
        """A delayed and a half message by the native protocol, and a producer that is asked about halves."""
        for name, request in (
            (
                "SendDelayed",
                producer_pb2.SendDelayedRequest(
                    topic="later",
                    message={"body": b"native later " + number.encode(), "unique_key": f"NLATER{number}"},
                    deliver_timestamp=due_ms,
                ),
            ),
            (
                "PrepareHalf",
                producer_pb2.PrepareHalfRequest(
                    topic="halves",
                    message={"body": b"native half " + number.encode(), "unique_key": f"NHALF{number}"},
                    check_after_ms=self.source.choice((0, 1_000)),
                ),
            ),
            ("CheckHalves", producer_pb2.CheckHalvesFrame(start={"topics": ["halves"]})),
        ):
            self._valid[f"{PRODUCER}{name}"].append(request)
            await self._do(f"{PRODUCER}{name}", request)

    async def _do(self, name: str, request: Message) -> Outcome:
        return await self.call(name, [request.SerializeToString()], CLIENT_METADATA)

    def accounted_blocks(self) -> int:
        """Memory blocks of objects that are kept with good reason, and have their limits elsewhere: files on
        the disk (trees are dictionaries here), acknowledged messages, and the state of consumers. These are
        groups (GROUP_COUNT_MAX of them: a receive makes the group that it names), and a state of each queue
        that one receives from: as many as stored offsets, until the group or the topic is deleted. A topic
        that gets more queues has a consume queue more for each that a message goes to."""
        pairs = self.calls.model.delivery.group_topics
        return (
            self._blocks_on_disk()
            + self.acknowledged.blocks
            + PAIR_BLOCKS * len(pairs.names())
            + QUEUE_STATE_BLOCKS * sum(1 for _ in pairs.states())
            + GROUP_BLOCKS * len(self.calls.model.groups)
            + CONSUME_QUEUE_BLOCKS * self.calls.store.consume_queues.queue_count
            + HALF_BLOCKS * len(self.calls.model.transactions._open._in_order)
            + CHECK_BLOCKS * len(self.calls.model.transactions._open._due)
        )

    def _blocks_on_disk(self) -> int:
        trees = self.calls.store.trees
        assert trees is not None
        found: set[int] = set()
        with trees.trees.read() as reader:
            for name in TREE_NAMES:
                for entry in reader.items(name, b""):
                    found.update(id(part) for part in entry if len(part) > 1)  # shorter ones are Python's own
        return len(found)

    # --- the end ----------------------------------------------------------------------------------------
    def check_tables(self) -> None:
        """Everything that belonged to a call is gone with it, and the limits hold."""
        services, core, model, settings = self.calls.all, self.calls.core, self.calls.model, self.settings
        left = {
            "long polls": len(core.long_polls),
            "receives that wait": len(core.waits),
            "queries": services.queries.running,
            "streams": len(services.messages.streams),
            "consume streams": len(self.calls.all.consumers.streams),
            "streams of checks": len(self.calls.all.producers.streams),
            "telemetry streams": len(self.calls.all.rocketmq.telemetry),
            "appends that wait": core.group_commit.waiting,
        }
        assert not any(left.values()), left
        assert len(core.registry) <= settings.clients_max
        assert model.timers.pending_count <= settings.timers_max
        assert model.transactions.open_count <= settings.transactions_max
        assert len(self.calls.store.topics) <= TOPIC_COUNT_MAX

    def check_recovered(self, files: FileSystem) -> None:
        """Opens the files now on the disk: they hold the acknowledged messages, and close cleanly."""
        now_ms = clock_ms() + 1_000
        store = MessageStore.open(files, self.settings.store_settings(ADVERTISED), now_ms, process_id=43)
        model = open_consumer_state(store, self.settings)
        self.acknowledged.check(store)
        model.export_to_rocketmq(now_ms)
        store.close(now_ms)
