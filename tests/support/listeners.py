"""The end of a listener of asyncio, with the connections that it accepted last."""

from __future__ import annotations

import asyncio

TURNS = 10
"""Turns of the loop in which accepted connections are made, and aborted ones closed."""


async def close_listener(server: asyncio.Server) -> None:
    """Accepts nothing more, and returns when each accepted connection was made. A server that is closed at
    once leaves the transport of a connection that it has just accepted open."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await turns()
    server.close()


async def turns() -> None:
    """TURNS of the loop."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
