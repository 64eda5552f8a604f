"""Asynchronous generators that nothing closes.

The garbage collector finds them later, and with them all that they refer to: of a call its requests, its
frames and its errors. The event loop then closes each by a separate task.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def generators_closed() -> Iterator[None]:
    """Fails if the block leaves begun generators to the collector. For use on a running loop, whose own hook
    still closes them."""
    left: Counter[str] = Counter()
    first, close = sys.get_asyncgen_hooks()
    assert close is not None, "there is a running loop"

    def note(generator: Any) -> None:
        left[generator.__qualname__] += 1
        close(generator)

    gc.collect()
    sys.set_asyncgen_hooks(first, note)
    try:
        yield
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(first, close)
    assert not left, f"asynchronous generators that nothing closed: {dict(left)}"
