"""The end of listeners in tests."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.listeners import close_listener


@pytest.mark.parametrize("turns", range(4))
def test_a_connection_that_was_accepted_last_stayed_open(turns: int) -> None:
    """It failed a test of failovers, by the warning of its transport."""

    async def scenario() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            await close_listener(server)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(scenario())
        gc.collect()
    assert not seen
