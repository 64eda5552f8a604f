"""Remoting clients over a kill of the leader, with a real etcd: those that know the address of one follower;
locks and the kind of a group's clients."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import ssl
from pathlib import Path

import pytest

import trovemq
from tests.integration.elected_nodes import Node, elected_nodes, until
from tests.support.certificates import Certificates
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd
from tests.support.remoting_client import RemotingClient, remoting_client
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import RequestCode, ResponseCode

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


async def locked(client: RemotingClient, client_id: str) -> list[int]:
    """The queues that it is given, of both. It asks until the leader's right to give any is certain."""
    await client.heartbeat(client_id)
    queues = [{"brokerName": "solo", "queueId": number, "topic": "orders"} for number in (0, 1)]
    data = {"consumerGroup": "readers", "clientId": client_id, "mqSet": queues}
    for _ in range(600):
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(data).encode())
        if answer.code == ResponseCode.SUCCESS:
            return sorted(one["queueId"] for one in answer.json()["lockOKMQSet"])
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
        await asyncio.sleep(0.1)
    raise AssertionError(answer.header.remark)


async def consumed_by_grpc(node: Node) -> None:
    async with (
        trovemq.connect(node.address) as client,
        client.subscribe("orders", group="readers") as subscription,
    ):
        await anext(aiter(subscription))


def test_the_next_leader_gave_locks_and_a_group_to_other_clients(tmp_path: Path) -> None:
    """The clients of the leader before had not come yet."""
    with elected_nodes(tmp_path, ("remoting_enable=true",), by_links=False) as group:
        former = group.leader()
        code, _, err = run_here(former.address, "topic", "create", "orders", "--queues", "2")
        assert code == 0, err

        async def main() -> None:
            async with remoting_client(former.address) as one:
                assert await locked(one, "one") == [0, 1]
                await asyncio.to_thread(former.kill)
            leader = await asyncio.to_thread(group.next_leader, former, "kill")
            with pytest.raises(TroveError, match="before this broker started, or came to lead") as caught:
                await consumed_by_grpc(leader)
            assert caught.value.spec is errors.GROUP_CLIENTS_DIFFER
            async with remoting_client(leader.address) as two:
                assert await locked(two, "two") == []
            async with remoting_client(leader.address) as one:
                assert await locked(one, "one") == [0, 1]

        asyncio.run(main())


async def signed_send(address: str, user: str, secret: str = "") -> int:
    """The code of the answer to a send that the user has signed."""
    fields = {"a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    fields |= {"g": "1700000000000", "h": "0", "i": "", "j": "0", "k": "false", "m": "false"}
    fields["AccessKey"], body = user, user.encode()
    text = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.digest((secret or f"secret-of-{user}").encode(), text, "sha1")
    fields["Signature"] = base64.b64encode(digest).decode()
    async with remoting_client(address) as client:
        return (await client.ask(RequestCode.SEND_MESSAGE_V2, fields, body)).code


async def unsigned_send(address: str) -> int:
    async with remoting_client(address) as client:
        return (await client.send("orders", b"unsigned")).code


def has_sent(address: str) -> bool:
    """Whether alice's message is acknowledged."""
    try:
        return asyncio.run(signed_send(address, "alice")) == ResponseCode.SUCCESS
    except (OSError, TimeoutError):
        return False


def test_users_of_remoting_clients_are_those_of_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each node: the follower's word for the client's address opens no other way."""
    keys = tmp_path / "keys"
    keys.write_text("access_key=admin\nsecret_key=secret-of-admin\n")
    keys.chmod(0o600)
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", str(keys))
    settings = (
        *("remoting_enable=true", "authentication_enable=true", "authorization_enable=true"),
        *(f"{name}={keys}" for name in ("admin_credentials_file", "config_credentials_file")),
        f"sealing_key_file={tmp_path / 'sealing-key'}",
    )
    with elected_nodes(tmp_path, settings, by_links=False) as group:
        former = group.leader()
        follower = next(one for one in group.nodes.values() if one is not former)
        commands = [["topic", "create", "orders", "--queues", "1"]]
        for name in ("alice", "mallory"):
            secret = tmp_path / name
            secret.write_text(f"secret-of-{name}\n")
            secret.chmod(0o600)
            commands.append(["user", "create", name, "--secret-file", str(secret)])
        for line in (*commands, ["acl", "allow", "alice", "Pub", "Topic:orders"]):
            code, _, err = run_here(former.address, *line)
            assert code == 0, err
        until("the follower's leader is known", lambda: has_sent(follower.address))
        for node in (former, follower):
            assert asyncio.run(signed_send(node.address, "alice")) == ResponseCode.SUCCESS
            assert asyncio.run(signed_send(node.address, "mallory")) == ResponseCode.NO_PERMISSION
            assert asyncio.run(signed_send(node.address, "alice", "wrong")) == ResponseCode.NO_PERMISSION
            assert asyncio.run(unsigned_send(node.address)) == ResponseCode.NO_PERMISSION
        former.kill()
        group.next_leader(former, "kill")
        until("the next leader takes the user's message", lambda: has_sent(follower.address))
        assert asyncio.run(signed_send(follower.address, "mallory")) == ResponseCode.NO_PERMISSION
