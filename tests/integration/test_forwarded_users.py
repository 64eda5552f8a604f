"""Forwarded calls with users: the second broker knows who called, and no stranger can name another one."""

from __future__ import annotations

import hmac
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

import trovemq
from tests.integration.test_shared_changes import Brokers, brokers_of, until_shared, with_users
from tests.support.remoting_client import remoting_client
from tests.support.rocketmq_client import SERVICE, message
from tests.unit.remoting.test_signatures import signature
from trovemq import TroveError
from trovemq.testing import NameserverProcess
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import forwarding_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

SECRET = "secret-of-{}"
FORWARD = "/trovemq.v1.ForwardingService/Forward"


def metadata_of(user: str) -> tuple[tuple[str, str], ...]:
    """A client of RocketMQ's with the user's signature."""
    date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.new(SECRET.format(user).encode(), date.encode(), "sha1").hexdigest().upper()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (("x-mq-client-id", user), ("x-mq-date-time", date), ("authorization", text))


async def send(address: str, user: str, topic: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_unary(
            SERVICE + "SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )
        request = service.SendMessageRequest(messages=[message(topic, b"x")])
        reply = await method(request, metadata=metadata_of(user), timeout=60)
        return reply.status


async def recall(address: str, user: str, topic: str, handle: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_unary(
            SERVICE + "RecallMessage",
            request_serializer=service.RecallMessageRequest.SerializeToString,
            response_deserializer=service.RecallMessageResponse.FromString,
        )
        request = service.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
        return await method(request, metadata=metadata_of(user), timeout=60)


async def searched(address: str, user: str, topic: str) -> list[bytes]:
    """The messages of the topic, by a client that was given this broker alone."""
    keys = trovemq.ClientOptions(access_key=user, secret_key=SECRET.format(user))
    async with await trovemq.connect(address, options=keys) as client:
        found = await client.search(topic)
    assert not found.unreachable
    return [one.body for one in found.messages]


async def forged(address: str, metadata: Any) -> str:
    """The error of a stranger who forwards a send in the name of `brokers`."""
    inner = service.SendMessageRequest(messages=[message("there", b"forged")])
    client = forwarding_pb2.ForwardedClient(caller="brokers", metadata={"x-mq-client-id": "x"})
    request = forwarding_pb2.ForwardRequest(
        client=client, method="SendMessage", request=inner.SerializeToString()
    )
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_stream(
            FORWARD, request_serializer=forwarding_pb2.ForwardRequest.SerializeToString
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in method(request, metadata=metadata, timeout=60):
                pass
        return str(caught.value.details())


def settings_with_users(directory: Path) -> dict[str, Any]:
    """Of brokers with the user `brokers`, who may do all, and by whom they forward."""
    credentials, conf = directory / "brokers.credentials", directory / "broker.conf"
    credentials.write_text("access_key=brokers\nsecret_key=secret-of-brokers\n")
    user = json.dumps({"username": "brokers", "password": "secret-of-brokers"})
    conf.write_text(f"initAuthenticationUser={user}\n")
    for path in (credentials, conf):
        path.chmod(0o600)
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "config_credentials_file": credentials,
        "arguments": ["--config", str(conf)],
    }


async def created(address: str, user: str) -> tuple[int, str]:
    """Code and remark of a creation by mqadmin, which asks each broker of a cluster in turn."""
    fields = {"username": user, "AccessKey": "brokers"}
    body = json.dumps({"username": user, "password": SECRET.format(user), "userType": "Normal"}).encode()
    signed = {**fields, "Signature": signature(fields, body, SECRET.format("brokers"))}
    async with remoting_client(address) as tool:
        answer = await tool.ask(RequestCode.AUTH_CREATE_USER, signed, body)
        return answer.code, answer.header.remark


async def test_a_tool_that_created_a_user_at_the_second_broker_failed(tmp_path: Path) -> None:
    """The first one had made it for the cluster."""
    with brokers_of(tmp_path, "ab", remoting_enable=True, **settings_with_users(tmp_path)) as brokers:
        addresses = [one.address for one in brokers.running.values()]
        keys = trovemq.ClientOptions(access_key="brokers", secret_key=SECRET.format("brokers"))
        async with await trovemq.connect(brokers.nameserver.address, options=keys) as client:
            await until_shared(client, "ab")
        for order in (addresses, addresses[::-1]):
            user = f"user-{order[0].rpartition(':')[2]}"
            assert [await created(one, user) for one in order] == [(ResponseCode.SUCCESS, "")] * 2


async def test_the_second_broker_checks_the_user_and_no_stranger_forwards(tmp_path: Path) -> None:
    settings = settings_with_users(tmp_path)
    keys = trovemq.ClientOptions(access_key="brokers", secret_key="secret-of-brokers")
    with NameserverProcess() as nameserver:
        brokers = Brokers(tmp_path, nameserver)
        try:
            for name in "ab":
                brokers.start(name, **settings)
            first, second = brokers.running["a"].address, brokers.running["b"].address
            async with await with_users(second, keys):
                pass
            async with await trovemq.connect(nameserver.address, options=keys) as client:
                await until_shared(client, "ab")
                await client.admin.create_topic("there", 1, brokers=["b"])
                for name in ("alice", "mallory"):
                    await client.admin.users.create(name, secret_key=SECRET.format(name))
                await client.admin.rules.allow("alice", "Pub", "Topic:there")
                status = await send(first, "alice", "there")
                assert status.code == v2.OK, status
                refused = await send(first, "mallory", "there")
                assert refused.code == v2.FORBIDDEN, refused
                await client.admin.create_topic("later", 1, message_type="DELAY", brokers=["b"])
                await client.admin.rules.allow("alice", "Pub", "Topic:later")
                async with client.producer("later") as producer:
                    made = await producer.send(b"x", deliver_after=3_600)
                handle = made.recall_handle
                denied = await recall(first, "mallory", "later", handle)
                assert denied.status.code == v2.FORBIDDEN, denied.status
                recalled = await recall(first, "alice", "later", handle)
                assert (recalled.status.code, recalled.message_id) == (v2.OK, made.message_id)
                (found,) = await client.admin.describe_topic("there")
                assert sum(queue.max_offset - queue.min_offset for queue in found.queues) == 1
                await client.admin.rules.allow("alice", "Sub", "Topic:there")
                assert await searched(first, "alice", "there") == [b"x"]
                with pytest.raises(TroveError, match="ACCESS_DENIED"):
                    await searched(first, "mallory", "there")
            assert "no credentials" in await forged(second, ())
            assert "no credentials" in await forged(second, metadata_of("alice")), (
                "a native call needs a log-in"
            )
        finally:
            for name in list(brokers.running):
                brokers.stop(name)
