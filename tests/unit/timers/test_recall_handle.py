"""The text with which a message is recalled."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.timers.recall_handle import RecallHandle, decode_recall_handle, encode_recall_handle
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

words = st.text(st.characters(blacklist_characters=" ", blacklist_categories=["Cs"]), min_size=1, max_size=40)


@given(words, words, st.integers(0, (1 << 63) - 1), words)
def test_a_handle_has_what_was_put_in(topic: str, broker: str, deliver_ms: EpochMs, message_id: str) -> None:
    handle = encode_recall_handle(topic, broker, deliver_ms, message_id)
    assert decode_recall_handle(handle) == RecallHandle(topic, broker, deliver_ms, message_id)
    assert decode_recall_handle(handle.rstrip("=")).message_id == message_id
    assert not set(handle) & set("+/ ")


def test_its_form_is_rocketmqs() -> None:
    handle = encode_recall_handle("orders", "broker-a", EpochMs(1_700_000_000_001), "01AB")
    assert urlsafe_b64decode(handle) == b"v1 orders broker-a 1700000000001 01AB"


@pytest.mark.parametrize(
    "text",
    [
        "v1 a b 1",
        "v2 a b 1 c",
        "v1 a b x c",
        "v1 a b -1 c",
        "v1  b 1 c",
        "v1 a b 1 c d",
        "v1 a b 9223372036854775808 c",
    ],
)
def test_a_text_of_another_form_is_illegal(text: str) -> None:
    with pytest.raises(TroveError) as caught:
        decode_recall_handle(urlsafe_b64encode(text.encode()).decode())
    assert caught.value.spec.symbol == "RECALL_HANDLE_ILLEGAL"


@given(st.text(max_size=60))
def test_anything_else_is_illegal_and_no_other_error(handle: str) -> None:
    with pytest.raises(TroveError) as caught:
        decode_recall_handle(handle)
    assert caught.value.spec.symbol == "RECALL_HANDLE_ILLEGAL"


def test_a_hostile_length_is_refused() -> None:
    with pytest.raises(TroveError, match="more than 2048"):
        decode_recall_handle("A" * 3_000)
