"""The reason of a dead letter as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.positions import EpochMs
from trovemq_proto.records import encode_properties, parse_properties
from trovemq_proto.records.dead_letter_reason import (
    ERROR_SIZE_MAX,
    KINDS,
    TEXT_SIZE_MAX,
    TIMES_MAX,
    DeadLetterReason,
    cut,
    reason_of,
)

TIMES = st.lists(st.integers(0, 10**14).map(EpochMs), max_size=40).map(tuple)
REASONS = st.builds(DeadLetterReason, st.sampled_from(KINDS), st.text(), st.text(max_size=900), TIMES)


@given(REASONS)
def test_a_bounded_reason_is_read_again_as_it_was(reason: DeadLetterReason) -> None:
    bounded = reason.bounded()
    assert len(bounded.error.encode()) <= ERROR_SIZE_MAX
    assert len(bounded.text.encode()) <= TEXT_SIZE_MAX
    assert bounded.times == reason.times[-TIMES_MAX:]
    block = encode_properties(bounded.properties())
    assert reason_of(parse_properties(block)) == bounded
    assert bounded.bounded() == bounded


@given(st.text(), st.integers(0, 40))
def test_a_cut_text_is_one_printable_line_of_limited_size(text: str, size: int) -> None:
    line = cut(text, size)
    assert len(line.encode()) <= size
    assert line.isprintable()
    if len(" ".join(text.split()).encode("utf-8", "replace")) > size > 2:
        assert line.endswith("…")


@given(st.dictionaries(st.sampled_from(["DLQ_ORIGIN_TIMES", "DLQ_ORIGIN_REASON"]), st.text()))
def test_properties_of_any_writer_are_read(properties: dict[str, str]) -> None:
    assert len(reason_of(properties).times) <= TIMES_MAX


def test_times_that_are_none_are_left_out() -> None:
    assert reason_of({"DLQ_ORIGIN_TIMES": "1,x,,-2,²,3"}).times == (1, 3)


def test_a_reason_in_words() -> None:
    assert str(DeadLetterReason("exception", "a.Bad", "no card")) == "the last attempt failed: a.Bad: no card"
    assert str(DeadLetterReason("explicit")) == "moved by the consumer"
    assert str(DeadLetterReason("explicit", text="no such street")) == "moved by the consumer: no such street"
    assert str(DeadLetterReason()) == ""
    assert str(DeadLetterReason("later-kind")) == "later-kind"


def test_a_reason_is_named_by_its_kind_its_exception_or_its_text() -> None:
    reason = DeadLetterReason("exception", "shop.Declined", "no card")
    assert all(map(reason.matches, ["exception", "shop.Declined", "Declined", "no card"]))
    assert not any(map(reason.matches, ["", "explicit", "shop", "card"]))
    assert not DeadLetterReason().matches("")
