"""Frames of the Consume stream become commands, and settlements that make no sense are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, Invisible
from trovemq_broker.server.wire import consume_frames as wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.dead_letter_reason import DeadLetterReason
from trovemq_proto.v1 import consumer_pb2

KINDS = consumer_pb2.SettlementKind


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"ranges": [3]}, "ranges are pairs of a queue offset and a count"),
        ({"ranges": [3, -1]}, "ranges are pairs of a queue offset and a count"),
        ({"ranges": [3, 1], "kind": KINDS.DEAD_LETTER}, "settlement of kind 3 by receipt"),
        ({"ranges": [3, 1], "kind": 9}, "settlement of kind 9 by receipt"),
        ({"ranges": [3, 1], "handle": "h"}, "a settlement is by receipt or by handle, not both"),
        ({"receipt": "r", "handle": "h"}, "a settlement is by receipt or by handle, not both"),
    ],
)
def test_a_settlement_that_makes_no_sense_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(TroveError) as refused:
        wire.read_settlement(consumer_pb2.Settlement(**fields))
    assert (refused.value.spec, refused.value.message) == (errors.REQUEST_ILLEGAL, text)


def test_an_acknowledgement_is_cut_into_steps() -> None:
    ranges = [7, 2, 100, wire.SETTLED_STEP + 1, 5, 0]
    read = wire.read_settlement(consumer_pb2.Settlement(receipt="r", ranges=ranges))
    assert isinstance(read, wire.SettleByReceipt)
    last = 100 + wire.SETTLED_STEP
    assert read[:3] == ("r", [range(7, 9), range(100, last), range(last, last + 1)], ACKNOWLEDGED)


def test_a_return_has_its_time_and_whether_it_counts() -> None:
    fields: dict[str, Any] = {"ranges": [1, 1], "kind": KINDS.RETURN, "invisible_ms": 20, "suspend": True}
    read = wire.read_settlement(consumer_pb2.Settlement(**fields))
    assert isinstance(read, wire.SettleByReceipt)
    assert isinstance(read.outcome, Invisible)
    assert (read.invisible_ms, read.suspend) == (20, True)


def test_a_settlement_of_no_messages_may_be_of_any_kind() -> None:
    read = wire.read_settlement(consumer_pb2.Settlement(ranges=[5, 0], kind=KINDS.EXTEND))
    assert isinstance(read, wire.SettleByReceipt)
    assert read.ranges == []


def test_a_settlement_by_handle_keeps_kinds_of_later_versions() -> None:
    fields: dict[str, Any] = {"handle": "h", "kind": 9, "invisible_ms": 20, "suspend": True}
    read = wire.read_settlement(consumer_pb2.Settlement(**fields))
    assert read == wire.SettleByHandle("h", 9, 20, True, DeadLetterReason("returned"))


@pytest.mark.parametrize(
    ("kind", "reason", "read"),
    [
        (KINDS.DEAD_LETTER, {}, "explicit"),
        (KINDS.DEAD_LETTER, {"returned": True}, "returned"),
        (KINDS.DEAD_LETTER, {"error": "ValueError", "returned": True}, "exception"),
        (KINDS.RETURN, {}, "returned"),
        (KINDS.RETURN, {"error": "ValueError"}, "exception"),
    ],
)
def test_the_kind_of_a_reason(kind: int, reason: dict[str, Any], read: str) -> None:
    said = consumer_pb2.SettlementReason(text="why", **reason)
    settlement = consumer_pb2.Settlement(handle="h", kind=kind, reason=said)  # type: ignore[arg-type]
    found = wire.read_settlement(settlement).reason
    assert (found.kind, found.error, found.text) == (read, reason.get("error", ""), "why")


def test_only_a_frame_with_a_start_has_one() -> None:
    later = wire.read_frame(consumer_pb2.ConsumeFrame(credit_messages=-3, received_batch=2, leave=True))
    assert (later.start, later.credit_messages, later.received_batch) == (None, -3, 2)
    assert (later.leave, later.stop, list(later.settlements), list(later.answers)) == (True, False, [], [])
    first = wire.read_frame(consumer_pb2.ConsumeFrame(start=consumer_pb2.ConsumeStart(filter="a")))
    assert first.start == wire.ConsumeStart("tag", "a", 0, "")


def test_messages_and_settlements_are_counted_whichever_are_more() -> None:
    named = [consumer_pb2.Settlement(ranges=[9, 4, 20, -2]), consumer_pb2.Settlement(handle="h")]
    assert wire.settled_count(named) == 6
    assert wire.settled_count(named[1:] * 3) == 3


def test_the_first_refusal_names_the_results() -> None:
    results = wire.SettlementResults()
    for number in range(3):
        results.add(consumer_pb2.Settlement(settlement_id=number + 7))
    assert results.symbol == "OK"
    results.fail(2, TroveError(errors.LIMIT_EXCEEDED, "too many"))
    results.refuse(1, 40, TroveError(errors.RECEIPT_HANDLE_ILLEGAL, "void"))
    results.set_handle(0, "next")
    reply = consumer_pb2.ConsumeReply.FromString(results.serialise())
    assert [
        (one.settlement_id, one.handle, one.error.symbol, [each.offset for each in one.refused])
        for one in reply.results
    ] == [(7, "next", "", []), (8, "", "", [40]), (9, "", "LIMIT_EXCEEDED", [])]
    assert results.symbol == "RECEIPT_HANDLE_ILLEGAL"
