"""Targets of channels, and the addresses of a name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from trovemq_rpc.channel.target import Address, Target
from trovemq_rpc.channel.zoned import connected_socket


@pytest.mark.parametrize(
    ("text", "authority", "host"),
    [
        ("broker-a:8081", "broker-a:8081", "broker-a"),
        ("dns:///broker-a", "broker-a:443", "broker-a"),
        ("127.0.0.1:8081", "127.0.0.1:8081", "127.0.0.1"),
        ("[::1]:8081", "[::1]:8081", "::1"),
        ("[fe80::1%eth0]:8081", "[fe80::1]:8081", "fe80::1"),
        ("[fe80::1%25eth0]:8081", "[fe80::1]:8081", "fe80::1"),
        ("ipv6:[fe80::1%eth0]:8081,[::1]:1", "[fe80::1]:8081", "fe80::1"),
        ("unix:/run/broker", "localhost", "localhost"),
    ],
)
def test_no_server_sees_the_zone_of_an_address(text: str, authority: str, host: str) -> None:
    target = Target(text)
    assert (target.authority, target.host) == (authority, host)


@pytest.mark.asyncio
@pytest.mark.parametrize("zone", ["%eth0", "%25eth0"])
async def test_the_zone_of_an_address_was_lost(zone: str) -> None:
    assert await Target(f"[fe80::1{zone}]:8081").resolve() == [Address("fe80::1%eth0", 8081)]
    assert await Target(f"ipv6:[fe80::1{zone}]:8081").resolve() == [Address("fe80::1%eth0", 8081)]


@pytest.mark.asyncio
async def test_an_address_without_a_zone_stays_as_it_is() -> None:
    assert await Target("[::1]:8081").resolve() == [Address("::1", 8081)]
    assert await Target("127.0.0.1:8081").resolve() == [Address("127.0.0.1", 8081)]


async def connect_to_a_listener_and_to_nothing(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    with await connected_socket(host, port) as connected:
        accepted, where = listener.accept()
        with accepted:
            assert where[:2] == connected.getsockname()[:2]
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        await connected_socket(host, port)
    with pytest.raises(OSError):  # which one depends on the system
        await connected_socket("fe80::1%1", port)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_zoned_address_is_connected_to_on_each_loop(factory: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(connect_to_a_listener_and_to_nothing(listener))
