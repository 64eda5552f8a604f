"""How often a large message is copied in transit, as the benchmark counts it."""

from __future__ import annotations

import pytest

from bench.rpc.copies import SIZE, copied_for_a_message


@pytest.mark.parametrize(("deserialized", "copies"), [(False, 1), (True, 2)])
def test_a_large_message_is_copied_at_its_receiver_only(deserialized: bool, copies: int) -> None:
    copied = copied_for_a_message(deserialized=deserialized)
    assert copied.by_sender < SIZE / 100  # the headers of frames
    assert copied.by_receiver == copies * SIZE
