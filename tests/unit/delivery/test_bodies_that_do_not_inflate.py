"""Symptom: a message with a compressed body that the broker cannot inflate (LZ4 without its package, or
noise) was never dead-lettered, kept its segment from being removed, and made each clean stop fail."""

from __future__ import annotations

import random

import pytest

from tests.support.fake_loop import fake_time
from tests.support.fuzz_ledger import MESSAGING, NATIVE
from tests.support.fuzzed_broker import CLIENT_METADATA, FuzzedBroker
from tests.support.memory_broker import receive_request
from tests.support.services_here import clock_ms, faults_seen, in_process, small_broker_settings
from trovemq_proto.records.encode import encode_record
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import message_pb2
from trovemq_store.files.memory import MemoryFileSystem

HEADS = {0x101: bytes.fromhex("04224d18"), 0x201: bytes.fromhex("28b52ffd"), 0x301: bytes.fromhex("789c")}
"""With these first bytes the doors believe the body's flag."""


async def _scenario(sys_flag: int) -> None:
    body = HEADS[sys_flag] + b"no stream"
    with in_process():
        broker = FuzzedBroker(MemoryFileSystem(), small_broker_settings(), random.Random(1))
        calls, store = broker.calls, broker.calls.store
        with faults_seen(calls):
            async with broker.working():
                for key in ("A", "B"):
                    records = encode_record(
                        "payments",
                        body,
                        sys_flag=sys_flag,
                        properties={"UNIQ_KEY": key},
                        append_property_crc=True,
                    )
                    frame = message_pb2.AppendFrame(frame_id=1, topic="payments", records=records)
                    await calls.call(f"{NATIVE}MessageService.Append", [frame.SerializeToString()])
                receive = receive_request("payments", group="workers", polling_ms=0)
                outcome = await broker.call(
                    f"{MESSAGING}ReceiveMessage", [receive.SerializeToString()], CLIENT_METADATA
                )
                replies = [service_pb2.ReceiveMessageResponse.FromString(one) for one in outcome.replies]
                first = next(one.message for one in replies if one.HasField("message"))
                assert first.body == body
                dead = service_pb2.ForwardMessageToDeadLetterQueueRequest(
                    group=v2.Resource(name="workers"),
                    topic=v2.Resource(name="payments"),
                    receipt_handle=first.system_properties.receipt_handle,
                )
                name = f"{MESSAGING}ForwardMessageToDeadLetterQueue"
                outcome = await broker.call(name, [dead.SerializeToString()], CLIENT_METADATA)
                assert calls.parse(name, outcome.replies[0]).status.code == v2.OK
                assert store.topics.get("%DLQ%workers") is not None
                calls.model.reappend_live_records_before(store.end_offset, clock_ms())
            calls.model.export_to_rocketmq(clock_ms())
            store.close(clock_ms())


@fake_time
@pytest.mark.parametrize("sys_flag", HEADS)
async def test_a_body_that_cannot_inflate_is_dead_lettered_carried_and_returned(sys_flag: int) -> None:
    await _scenario(sys_flag)
