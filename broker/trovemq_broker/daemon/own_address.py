"""The broker's own address with an IP address as its host, as records have it.

Its name may not be known yet when a machine or a pod has just started: the broker waits for it, and `/readyz`
says so. Names are looked up in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trovemq_daemon.addresses import Address, resolve_ip
from trovemq_daemon.lifecycle import Stop
from trovemq_daemon.logging import get_logger

RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 5.0
LOG_INTERVAL_S: Final = 60.0


async def own_address(
    advertised: Address,
    stop: Stop,
    report: Callable[[str], None],
    resolve: Callable[[Address], Address] = resolve_ip,
) -> Address | None:
    """The address once its name is known; None if the broker is to stop before. `report` gets the reason of
    the wait."""
    loop, delay_s, log_at = asyncio.get_running_loop(), RETRY_MIN_S, 0.0
    while not stop.requested:
        try:
            return await asyncio.to_thread(resolve, advertised)
        except OSError as error:
            reason = f"waiting for its own name: {advertised.host!r} is unknown here ({error})"
        report(reason)
        if loop.time() >= log_at:
            log_at = loop.time() + LOG_INTERVAL_S
            get_logger().warning("broker.name_unknown", name=advertised.host, detail=reason)
        await _pause(stop, delay_s)
        delay_s = min(2 * delay_s, RETRY_MAX_S)
    return None


async def _pause(stop: Stop, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
