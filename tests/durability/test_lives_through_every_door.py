"""A walk over every door that takes a message, with odd fields, through lives that end by kill and by stop.

The steps are Hypothesis' choice: native Append and Send, RocketMQ's SendMessage, delayed and half messages of
both protocols, receives with acknowledgements and dead letters, streams of a group, resends of dead letters,
time that passes, a kill, a clean stop. At the end every acknowledged message is found by its id, with the
body that was sent; no call failed with an internal error; no receiver saw the broker's own records.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.engine import with_crc_property
from tests.support.fake_loop import run
from tests.support.fuzz_ledger import MESSAGING, NATIVE
from tests.support.fuzzed_broker import CLIENT_METADATA, CONSUME, check_outcome, consume_frames
from tests.support.memory_broker import message, receive_request
from tests.support.services_here import (
    BrokerServices,
    clock_ms,
    faults_seen,
    in_process,
    small_broker_settings,
)
from tests.support.trials import SOAK
from tests.unit.engine.test_whole_lives import NAMES, TEXTS, record_of
from trovemq_proto.records import decode_stored
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, consumer_pb2, group_pb2, message_pb2, producer_pb2, query_pb2
from trovemq_store.files.memory import MemoryFileSystem

TOPICS: Final = {"orders": "NORMAL", "later": "DELAY", "deals": "TRANSACTION"}
GROUP: Final = "workers"
LEASE_MS: Final = 15_000
TXT: Final = [text.decode("utf-8", "replace") for text in TEXTS]
WALKS, STEPS_MAX = (400, 60) if SOAK else (12, 24)
SETTINGS: Final = small_broker_settings(commit_log_file_size=1 << 20)


class Walk:
    """One broker after another over one disk."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.broker = BrokerServices(self.files, SETTINGS)
        self.acknowledged: dict[str, bytes] = {}
        self.prepared: dict[str, tuple[str, bytes]] = {}
        """Half messages by transaction id."""
        self.held: list[v2.Message] = []
        self.count = 0

    async def ask(self, name: str, *requests: Any) -> list[Any]:
        sent = [request.SerializeToString() for request in requests]
        outcome = await self.broker.call(name, sent, CLIENT_METADATA)
        replies = [self.broker.parse(name, one) for one in outcome.replies]
        check_outcome(name, outcome, replies)
        return replies if outcome.code == "OK" else []

    def unique_key(self) -> str:
        self.count += 1
        return f"ID-{self.count}"

    def properties(self, source: random.Random) -> dict[str, str]:
        names = [source.choice((*NAMES, "TROVEMQ_TX_ID", "x y", "")) for _ in range(source.randrange(4))]
        return {name: source.choice(TXT) for name in names}

    async def make_topics(self, _: random.Random) -> None:
        for topic, kind in TOPICS.items():
            wanted = admin_pb2.CreateTopicRequest(topic=topic, queue_count=1, message_type=kind)
            await self.ask(f"{NATIVE}AdminService.CreateTopic", wanted)
        group = group_pb2.CreateGroupRequest(group=GROUP, settings=group_pb2.GroupSettings(retry_max=1))
        await self.ask(f"{NATIVE}GroupService.CreateGroup", group)

    # --- the doors ----------------------------------------------------------------------------------
    async def append(self, source: random.Random) -> None:
        key = self.unique_key()
        record = record_of(source, "orders", key, any_store=source.random() < 0.3)
        data = with_crc_property(record)
        frame = message_pb2.AppendFrame(frame_id=1, topic="orders", queue_id=0, records=data)
        for reply in await self.ask(f"{NATIVE}MessageService.Append", frame):
            if not reply.HasField("error"):
                self.acknowledged[key] = decode_stored(record).stored_body

    async def send(self, source: random.Random) -> None:
        key = self.unique_key()
        one = message_pb2.OutgoingMessage(
            body=source.randbytes(source.randrange(60)),
            tag=source.choice(("", "a", *TXT)),
            keys=source.choices(TXT, k=source.randrange(3)),
            unique_key=key,
            properties=self.properties(source),
            flag=source.choice((0, -1, 7)),
            born_timestamp=source.choice((0, 1, clock_ms())),
        )
        if await self.ask(
            f"{NATIVE}MessageService.Send", message_pb2.SendRequest(topic="orders", messages=[one])
        ):
            self.acknowledged[key] = one.body

    async def send_v2(self, source: random.Random, topic: str = "orders", **system: Any) -> Any:
        key, body = self.unique_key(), source.randbytes(1 + source.randrange(60))
        one = message(body, topic, message_id=key, properties=self.properties(source), **system)
        if source.random() < 0.5:
            one.system_properties.tag = source.choice(TXT)
            one.system_properties.keys.extend(source.choices(TXT, k=source.randrange(3)))
        request = service_pb2.SendMessageRequest(messages=[one])
        for reply in await self.ask(f"{MESSAGING}SendMessage", request):
            if reply.status.code == v2.OK and topic != "deals":
                self.acknowledged[key] = body
            elif reply.status.code == v2.OK:
                self.prepared[reply.entries[0].transaction_id] = key, body

    def deferred(self, source: random.Random) -> dict[str, Any]:
        """The fields of a message for ProducerService."""
        odd = source.random() < 0.5
        return {
            "body": source.randbytes(1 + source.randrange(60)),
            "unique_key": self.unique_key(),
            "tag": source.choice(TXT) if odd else "a",
            "keys": source.choices(TXT, k=source.randrange(3)) if odd else ["k"],
            "properties": self.properties(source) if odd else {"p": "v"},
            "flag": source.choice((0, -1, 7)),
        }

    async def send_later(self, source: random.Random) -> None:
        deliver_ms = clock_ms() + source.choice((0, 500, 40_000))
        if source.random() < 0.5:
            await self.send_v2(source, "later", deliver_ms=deliver_ms)
            return
        one = self.deferred(source)
        request = producer_pb2.SendDelayedRequest(topic="later", message=one, deliver_timestamp=deliver_ms)
        if await self.ask(f"{NATIVE}ProducerService.SendDelayed", request):
            self.acknowledged[one["unique_key"]] = one["body"]

    async def prepare(self, source: random.Random) -> None:
        if source.random() < 0.5:
            await self.send_v2(source, "deals", message_type=v2.TRANSACTION)
            return
        one = self.deferred(source)
        request = producer_pb2.PrepareHalfRequest(topic="deals", message=one)
        for reply in await self.ask(f"{NATIVE}ProducerService.PrepareHalf", request):
            self.prepared[reply.transaction_id] = one["unique_key"], one["body"]

    async def end(self, source: random.Random) -> None:
        for transaction_id, (key, _) in list(self.prepared.items())[:1]:
            commit = source.random() < 0.7
            if source.random() < 0.5:
                end = producer_pb2.EndHalfRequest(topic="deals", transaction_id=transaction_id, commit=commit)
                if await self.ask(f"{NATIVE}ProducerService.EndHalf", end):
                    self._ended(transaction_id, commit)
                continue
            request = service_pb2.EndTransactionRequest(
                topic=v2.Resource(name="deals"),
                message_id=key,
                transaction_id=transaction_id,
                resolution=v2.COMMIT if commit else v2.ROLLBACK,
            )
            for reply in await self.ask(f"{MESSAGING}EndTransaction", request):
                if reply.status.code == v2.OK:
                    self._ended(transaction_id, commit)

    def _ended(self, transaction_id: str, commit: bool) -> None:
        key, body = self.prepared.pop(transaction_id)
        if commit:
            self.acknowledged[key] = body

    # --- consumers ----------------------------------------------------------------------------------
    async def receive(self, source: random.Random) -> None:
        topic = source.choice(list(TOPICS))
        request = receive_request(topic, group=GROUP, batch_size=8, polling_ms=0, invisible_ms=LEASE_MS)
        for reply in await self.ask(f"{MESSAGING}ReceiveMessage", request):
            if reply.HasField("message"):
                assert not any(name.startswith("TROVEMQ_") for name in reply.message.user_properties)
                self.held.append(reply.message)

    async def consume(self, source: random.Random) -> None:
        """Messages by a stream; some are settled by another one, the rest is delivered later."""
        start, *rest = consume_frames(GROUP, source.choice(list(TOPICS)))
        replies = await self.ask(CONSUME, start, *rest)
        later = consumer_pb2.ConsumeFrame(group=start.group, topic=start.topic, start=start.start)
        for one in (one for reply in replies for one in reply.runs):
            kind = source.choice((consumer_pb2.ACKNOWLEDGE, consumer_pb2.RETURN))
            count = source.randrange(one.count + 1)
            later.settlements.add(kind=kind, receipt=one.receipt, ranges=(one.first_offset, count))
        if later.settlements:
            results = [result for reply in await self.ask(CONSUME, later) for result in reply.results]
            assert len(results) == len(later.settlements)
            assert not any(result.HasField("error") or result.refused for result in results)

    async def settle(self, source: random.Random) -> None:
        while self.held:
            received = self.held.pop()
            system = received.system_properties
            common: dict[str, Any] = {"group": v2.Resource(name=GROUP), "topic": received.topic}
            if source.random() < 0.4:
                entry = service_pb2.AckMessageEntry(
                    message_id=system.message_id, receipt_handle=system.receipt_handle
                )
                await self.ask(
                    f"{MESSAGING}AckMessage", service_pb2.AckMessageRequest(entries=[entry], **common)
                )
            elif source.random() < 0.6:
                request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
                    message_id=system.message_id, receipt_handle=system.receipt_handle, **common
                )
                await self.ask(f"{MESSAGING}ForwardMessageToDeadLetterQueue", request)

    async def resend(self, source: random.Random) -> None:
        request = group_pb2.ResendDeadLettersRequest(group=GROUP, offsets=range(source.randrange(1, 6)))
        await self.ask(f"{NATIVE}GroupService.ResendDeadLetters", request)

    async def wait(self, source: random.Random) -> None:
        await asyncio.sleep(source.choice((0.1, 2, 20)))

    # --- ends of lives ------------------------------------------------------------------------------
    async def stop(self) -> None:
        await self.broker.core.settle()
        self.broker.model.export_to_rocketmq(clock_ms())
        self.broker.store.close(clock_ms())

    def kill(self) -> None:
        self.files = self.files.after_process_kill()

    async def check(self) -> None:
        for key, sent in self.acknowledged.items():
            found = await self.ask(f"{NATIVE}QueryService.GetMessage", query_pb2.GetMessageRequest(id=key))
            bodies = [body for page in found for body in bodies_of(page.records)]
            assert bodies, f"{key} was acknowledged and is not found"
            assert set(bodies) == {sent}, key


def bodies_of(records: bytes) -> list[bytes]:
    batch = RecordBatch.split(records)
    return [decode_stored(batch.record(number)).stored_body for number in range(len(batch))]


Step = Callable[[Walk, random.Random], Awaitable[None]]
DOORS: Final[list[Step]] = [
    Walk.append,
    Walk.send,
    Walk.send_v2,
    Walk.send_later,
    Walk.prepare,
    Walk.end,
    Walk.receive,
    Walk.consume,
    Walk.settle,
    Walk.resend,
    Walk.wait,
]
ENDS: Final = ("stop", "kill")
"""Of a life."""


async def walk(lives: list[tuple[str, list[tuple[Step, int]]]]) -> int:
    with in_process():
        made = Walk()
        for end, steps in lives:
            with faults_seen(made.broker):
                async with made.broker.working():
                    for step, seed in [(Walk.make_topics, 0), *steps]:
                        await step(made, random.Random(seed))
                if end == "stop":
                    await made.stop()
                else:
                    made.kill()
            made.broker, made.held = BrokerServices(made.files, SETTINGS), []
        with faults_seen(made.broker):
            async with made.broker.working():
                await asyncio.sleep(45)  # every delay is over
                await made.check()
        return len(made.acknowledged)


STEPS = st.lists(st.tuples(st.sampled_from(DOORS), st.integers(0, 1 << 20)), min_size=4, max_size=STEPS_MAX)
LIVES = st.lists(st.tuples(st.sampled_from(ENDS), STEPS), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=WALKS, deadline=None, suppress_health_check=list(HealthCheck))
@given(LIVES)
def test_what_any_door_acknowledged_is_found_after_any_lives(
    lives: list[tuple[str, list[tuple[Step, int]]]],
) -> None:
    run(walk(lives))


@pytest.mark.slow
def test_each_door_takes_something() -> None:
    """So that the walk above can fail."""
    steps = [(step, seed) for seed in range(8) for step in DOORS]
    assert run(walk([("kill", steps), ("stop", steps), ("kill", steps)])) > 40
