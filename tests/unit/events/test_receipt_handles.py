"""Receipt handles that come mixed are read as each alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.oracles.receipt_handles import read_handle
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.events import receipt_handle
from trovemq_store.events.receipt_handle import (
    HandleReader,
    broker_of_handle,
    encode_handle,
    handle_head,
    handle_seed,
)

SEED = handle_seed("g", "orders")

LEASES = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3), st.integers(0, 5), st.booleans())
GOOD = st.builds(
    lambda lease, offset, seed: encode_handle(
        seed, handle_head(lease[0], QueueId(lease[1]), *lease[2:]), offset
    ),
    LEASES,
    st.integers(0, 1 << 40),
    st.sampled_from([SEED, SEED, SEED, 0]),
)
ODD = st.one_of(
    st.sampled_from(
        ["", ".", "..", "0.0.1.1.0.1.00000000", "x" * 200 + ".0.00000000", "9.0.1.1.0.0.00000000"]
    ),
    st.text(alphabet="0123456789abcdef._+- ", max_size=40),
    st.builds(lambda handle, at: handle[:at] + "0" + handle[at + 1 :], GOOD, st.integers(0, 30)),
)


@given(handles=st.lists(st.one_of(GOOD, ODD), max_size=20))
def test_mixed_handles_are_read_as_each_by_itself(handles: list[str]) -> None:
    reader = HandleReader(SEED)
    found = {}
    for head, places in reader.read_mixed([handle.encode() for handle in handles]):
        for offset, place in places:
            assert place not in found
            found[place] = head, offset
    for place, handle in enumerate(handles):
        try:
            expected = read_handle(SEED, handle)
        except TroveError:
            assert place not in found
        else:
            assert found[place] == expected


@given(handle=st.one_of(GOOD, ODD), broker=st.sampled_from(["", "b", "broker-b"]))
def test_the_broker_of_a_handle_is_the_one_whose_reader_takes_it(handle: str, broker: str) -> None:
    names = ["a", "", "b", "broker-b"]
    own = encode_handle(handle_seed("g", "orders", broker), handle_head(0, QueueId(1), 2, 5, False), 7)
    assert broker_of_handle(own.encode(), "g", "orders", names) == broker
    taken = [n for n in names if HandleReader(handle_seed("g", "orders", n)).read_mixed([handle.encode()])]
    assert broker_of_handle(handle.encode(), "g", "orders", names) == (taken[0] if taken else None)


def test_heads_are_forgotten_before_they_are_too_many() -> None:
    reader = HandleReader(SEED)
    for lease in range(receipt_handle.HEADS_KEPT * 2):
        handle = encode_handle(SEED, handle_head(0, QueueId(0), lease, 5, False), lease)
        assert len(reader.read_mixed([handle.encode()])) == 1
        assert len(reader._heads) <= receipt_handle.HEADS_KEPT + 1
