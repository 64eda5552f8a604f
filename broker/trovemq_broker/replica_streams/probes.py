"""Whether a process has ended: its machine refuses the connection."""

from __future__ import annotations

import asyncio

from trovemq_daemon.addresses import Address


async def refused(address: Address) -> bool:
    """OSError: that is not known, because the machine cannot be reached."""
    try:
        _, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False
