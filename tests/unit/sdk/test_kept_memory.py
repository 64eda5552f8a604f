"""A client keeps the memory of freed frames, which costs nothing itself."""

from __future__ import annotations

import tracemalloc

from trovemq_proto.memory import keep_freed_memory


def test_each_client_after_the_first_zeroed_31_mib() -> None:
    """The block is free where malloc maps it, and not where it comes from the heap."""
    keep_freed_memory()
    tracemalloc.start()
    try:
        keep_freed_memory()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
