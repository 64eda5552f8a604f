"""Whose a producer's id is, at each RPC that takes one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import record
from tests.unit.server.access.access_here import CLUSTER, AccessHere
from trovemq._produce.sequences import SequenceAssigner, own_id
from trovemq_broker.server.access import producer_ids
from trovemq_broker.server.access.gate import Caller, Gate
from trovemq_broker.server.access.needs import ROWS
from trovemq_broker.server.wire.frames import read_append_frame
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import message_pb2

SERVICE = "/trovemq.v1.MessageService"
ALICE = Caller("alice", "127.0.0.1", None)


@pytest.fixture(scope="module")
def here() -> AccessHere:
    made = AccessHere()
    for name in ("alice", "alice.b", "admin"):
        made.user(name, is_super=name == "admin")
        made.rule(name, "Pub", "Topic:*")
    return made


def frame(*producers: str | None, records: bytes = b"", topic: str = "orders") -> Any:
    """As it was received: numbered records of these producers; None: one without a number."""
    numbers = ({} if one is None else {"TROVEMQ_PRODUCER": one, "TROVEMQ_SEQUENCE": "7"} for one in producers)
    data = b"".join(record(b"TROVEMQ_PRODUCER", properties=properties) for properties in numbers)
    return read_append_frame(message_pb2.AppendFrame(topic=topic, records=data + records).SerializeToString())


def send(*producers: str) -> Any:
    messages = [message_pb2.OutgoingMessage(properties={"TROVEMQ_PRODUCER": one}) for one in producers]
    return message_pb2.SendRequest(topic="orders", messages=[*messages, message_pb2.OutgoingMessage()])


def question(producer: str) -> Any:
    return message_pb2.GetProducerRequest(topic="orders", producer_id=producer)


def refusal(gate: Gate, method: str, request: Any, caller: Caller = ALICE) -> str:
    try:
        gate.admit(caller, ROWS[f"{SERVICE}/{method}"], request)
    except TroveError as error:
        if error.symbol != "ACCESS_DENIED":
            raise
        return error.message
    return ""


OTHERS = ("bob:p", "p", "alice.b:p", "alice", ":p", "Alice:p", "alice :p", "", "bob:alice:p")


@pytest.mark.parametrize("other", OTHERS)
def test_ids_of_others_and_of_nobody_are_refused(here: AccessHere, other: str) -> None:
    assert refusal(here.gate, "Send", send("alice:p")) == ""
    assert refusal(here.gate, "Send", send("alice:p", other)) != ""
    assert refusal(here.gate, "GetProducer", question("alice:p")) == ""
    assert refusal(here.gate, "GetProducer", question(other)) != ""
    assert refusal(here.gate, "GetProducer", question(other), Caller("admin", "", None)) == ""


@pytest.mark.parametrize("other", ["bob:p", "p", "alice.b:p"])
def test_one_message_of_another_producer_refuses_its_frame(here: AccessHere, other: str) -> None:
    assert refusal(here.gate, "Append", frame("alice:p", "alice:q", None)) == ""
    text = refusal(here.gate, "Append", frame(None, "alice:p", other))
    assert text == f"producer id {other!r} is not one of alice, whose ids are as 'alice:p'"


def test_ids_count_where_there_are_no_rules(here: AccessHere) -> None:
    gate = Gate(authorization=False, cluster=CLUSTER, clock_ms=lambda: EpochMs(0))
    gate.open(here.table, here.sessions)
    assert refusal(gate, "Append", frame("alice:p")) == ""
    assert refusal(gate, "Append", frame("bob:p")) != ""


def test_a_batch_that_cannot_be_read_is_its_services_to_refuse(here: AccessHere) -> None:
    assert refusal(here.gate, "Append", frame("bob:p", records=b"no record")) == ""
    assert refusal(here.gate, "Append", read_append_frame(b"\xff TROVEMQ_PRODUCER")) == ""


def test_the_engine_reads_no_id_that_was_not_checked() -> None:
    """A copy's number does not count, for the engine either."""
    copied = record(b"", properties={"TROVEMQ_PRODUCER": "bob:p", "TROVEMQ_SEQUENCE": "1"}, sys_flag=0x8)
    assert producer_ids.of_frame(frame(None, records=copied)) == set()


names = st.text("abc.@_-", min_size=1, max_size=64)


@given(names, names)
def test_a_clients_own_id_is_its_users_and_nobody_elses(access_key: str, other: str) -> None:
    made = SequenceAssigner(None, access_key).producer_id
    assert producer_ids.is_own(made, access_key)
    assert producer_ids.is_own(made, other) == (other == access_key)
    assert own_id(made, other) == made
    assert own_id("p", None) == "p"
