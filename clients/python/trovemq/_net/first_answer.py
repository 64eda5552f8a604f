"""Waits for one answer, when several servers get the same request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from trovemq_proto.errors import TroveError

GRACE_SECONDS: Final = 0.1
"""How long the others may take after the first answer, before the caller continues without them."""


async def first_of(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Returns when one task is done, or shortly after; the others continue. Raises the first task's
    TroveError if all of them failed."""
    late, grace = set(tasks), False
    try:
        while late:
            done, late = await asyncio.wait(
                late, timeout=GRACE_SECONDS if grace else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return
            grace = grace or any(task.exception() is None for task in done)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    failures = [task.exception() for task in tasks]
    for failure in failures:
        if failure is not None and not isinstance(failure, TroveError):
            raise failure
    if all(failures):
        assert failures[0] is not None
        raise failures[0]
