"""Remoting clients that know the address of one follower, over a kill of the leader, with a real etcd."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.integration.elected_nodes import elected_nodes, until
from tests.support.certificates import Certificates
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd
from tests.support.remoting_client import remoting_client
from trovemq_proto.remoting.codes import ResponseCode

pytestmark = [pytest.mark.slow, needs_etcd]


async def send(address: str, context: ssl.SSLContext | None, body: bytes) -> bool:
    """Whether it was acknowledged."""
    async with remoting_client(address, tls=context) as client:
        return (await client.send("orders", body)).code == ResponseCode.SUCCESS


async def stored(address: str, context: ssl.SSLContext | None) -> list[bytes]:
    async with remoting_client(address, tls=context) as client:
        return (await client.pull("orders", 0)).bodies


@pytest.mark.parametrize("by_tls", [False, True])
def test_remoting_clients_at_a_follower_live_through_a_kill(tmp_path: Path, by_tls: bool) -> None:
    made = Certificates.made(tmp_path / "certificates")
    files = f"tls_certificate={made.pem('server')}", f"tls_key={made.key('server')}"
    context = ssl.create_default_context(cafile=str(made.ca)) if by_tls else None
    with elected_nodes(tmp_path, ("remoting_enable=true", *files), by_links=False) as group:
        former = group.leader()
        follower = next(one for one in group.nodes.values() if one is not former)
        address = follower.tls_address if by_tls else follower.address
        code, _, err = run_here(former.address, "topic", "create", "orders", "--queues", "1")
        assert code == 0, err

        def has_sent(body: bytes) -> bool:
            try:
                return asyncio.run(send(address, context, body))
            except (OSError, TimeoutError):
                return False

        until("the leader has a message of the follower's client", lambda: has_sent(b"before"))
        former.kill()
        group.next_leader(former, "kill")
        until("the next leader has one", lambda: has_sent(b"after"))
        bodies = asyncio.run(stored(address, context))
        assert bodies[0] == b"before"
        assert bodies[-1] == b"after"
