"""The short ways of a single send give the same as the general ones."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trovemq._outgoing import property_block
from trovemq._unique_keys import next_unique_key
from trovemq.receipts import AppendOutcome, FrameReceipt
from trovemq_proto.records import encode_properties, parse_properties


@given(st.integers(0, 1 << 62), st.booleans(), st.integers(2, 5))
def test_the_receipts_of_a_frame_are_those_of_its_records(place: int, ipv6: bool, count: int) -> None:
    host = bytes(range(20 if ipv6 else 8))
    outcome = AppendOutcome(1, "PUT_OK", None, 9, place, count, 1_700_000_000_000, "disk", host, "broker-a")
    sizes = list(range(100, 100 + count))
    frame = FrameReceipt("orders", 3, sizes, [f"K{i}" for i in range(count)], outcome)
    assert frame.receipts() == [frame.receipt(i, offset) for i, offset in enumerate(frame.physical_offsets)]
    columns = FrameReceipt("orders", 3, np.array(sizes), frame.unique_keys, outcome)
    assert columns.receipts() == frame.receipts()


def test_the_block_of_a_message_without_properties() -> None:
    key, block = property_block()
    assert block == encode_properties({"UNIQ_KEY": key})
    key, block = property_block(keys="a", tag="b")
    assert list(parse_properties(block).items()) == [("UNIQ_KEY", key), ("KEYS", "a"), ("TAGS", "b")]


def test_a_forked_process_makes_unique_keys_of_its_own() -> None:
    before = next_unique_key()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, next_unique_key().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100)[:22] != before[:22].encode()
    assert next_unique_key()[:22] == before[:22]
    os.close(read)
    os.close(write)
