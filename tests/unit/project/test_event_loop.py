"""The event loop of tests."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.event_loop import EventLoop


async def leave_a_connection_open() -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    await asyncio.get_running_loop().create_connection(asyncio.Protocol, *server.sockets[0].getsockname()[:2])


def test_a_loop_closes_with_a_connection_left_open_and_names_it() -> None:
    loop = EventLoop()
    loop.run_until_complete(leave_a_connection_open())
    with pytest.raises(ResourceWarning, match="unclosed resource <TCP"):
        loop.close()
    assert loop.is_closed()


def test_a_loop_with_nothing_left_open_closes_without_a_word() -> None:
    loop = EventLoop()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
