"""Native calls of a client that knows one follower's address, and nothing of groups: its leader handles them.
Three real nodes, and a client of grpcio."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.test_cluster_local import running
from tests.integration.test_failover import kill, promote, ready
from tests.integration.test_replica_groups import NAMES, SMALL, Broker, in_sync, objects, until
from tests.support.certificates import Certificates
from tests.support.engine import sent_record
from tests.support.remoting_client import remoting_client
from tests.support.stubs import ADMIN, MESSAGES, PRODUCERS, QUERIES, stub_of
from trovemq._common.loopback_ports import kept_port, port_of
from trovemq_broker.cluster.nameserver_session import error_in, open_session
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.forwarding import CALLER_KEY, PEER_KEY
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.v1 import (
    admin_pb2,
    common_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
)

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD = NAMES
CONSUMER = consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"]
SEND = "/trovemq.v1.MessageService/Send"
QUEUE = {"topic": "orders", "brokerName": "broker-1", "queueId": 0}
WAIT_S = 60


def send(channel: grpc.Channel, body: bytes) -> Any:
    request = message_pb2.SendRequest(topic="orders", messages=[{"body": body, "keys": ["k"]}])
    return stub_of(MESSAGES, channel).Send(request, timeout=WAIT_S)


def has_sent(channel: grpc.Channel, body: bytes) -> bool:
    try:
        return bool(send(channel, body).status == common_pb2.PUT_OK)
    except grpc.RpcError:
        return False


def frame(number: int) -> message_pb2.AppendFrame:
    record = sent_record(b"frame %d" % number, unique_key=f"U{number}")
    return message_pb2.AppendFrame(frame_id=number, topic="orders", records=record)


def consumed(channel: grpc.Channel) -> int:
    """How many messages come by a stream of a group after one is sent."""
    frames: queue.SimpleQueue[consumer_pb2.ConsumeFrame | None] = queue.SimpleQueue()
    frames.put(
        consumer_pb2.ConsumeFrame(group="g", topic="orders", start={}, credit_messages=9, credit_bytes=99_999)
    )
    metadata = (("x-mq-client-id", "client-1"), ("x-mq-language", "GO"), ("x-mq-client-version", "1"))
    replies = stub_of(CONSUMER, channel).Consume(iter(frames.get, None), timeout=WAIT_S, metadata=metadata)
    assert next(replies).HasField("settings")
    assert has_sent(channel, b"for the group")
    runs = next(reply.runs for reply in replies if reply.runs)
    replies.cancel()
    frames.put(None)
    return sum(run.count for run in runs)


def test_a_native_client_at_a_follower_was_refused(tmp_path: Path) -> None:
    """Each form of a call: one request or many, one reply or many; and over a failover."""
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        ready(command)
        with grpc.insecure_channel(str(command.rows[THIRD]["address"])) as channel:
            topic = admin_pb2.CreateTopicRequest(topic="orders", queue_count=1)
            assert stub_of(ADMIN, channel).CreateTopic(topic, timeout=WAIT_S).topic == "orders"
            assert (reply := send(channel, b"one")).status == common_pb2.PUT_OK
            assert reply.copies >= 2
            frames = stub_of(MESSAGES, channel).Append(iter([frame(1), frame(2)]), timeout=WAIT_S)
            assert [one.status for one in frames] == [common_pb2.PUT_OK] * 2
            asked = query_pb2.QueryByKeyRequest(topic="orders", key="k")
            pages = list(stub_of(QUERIES, channel).QueryByKey(asked, timeout=WAIT_S))
            assert b"".join(page.records for page in pages).count(b"one") == 1
            assert consumed(channel) >= 1
            missing = producer_pb2.RecallRequest(topic="orders", recall_handle="x")
            with pytest.raises(grpc.RpcError) as refused:
                stub_of(PRODUCERS, channel).Recall(missing, timeout=WAIT_S)
            assert "trovemq-error-bin" in dict(refused.value.trailing_metadata()), "the leader's error"

            kill(command, FIRST)
            promote(command, SECOND)
            until("the next leader has it", lambda: has_sent(channel, b"two"))
            until("all are in sync", lambda: in_sync(command, SECOND))
            assert send(channel, b"three").copies == 3
        (found,) = objects(command.server, "topic", "describe", "orders")
        assert found
        assert command.ended(signal.SIGTERM)[0] == 0


async def sent_by(address: str, user: str, *more: tuple[str, bytes | str]) -> str:
    """The outcome of a signed send. `more`: metadata."""
    channel = open_channel(address, ChannelSettings())
    async with channel:
        session = await open_session(channel, lambda: Credentials(user, f"secret-of-{user}"), WAIT_S)
        metadata, sign = session.call(SEND)
        request = message_pb2.SendRequest(topic="orders", messages=[{"body": user.encode()}])
        ask = channel.unary_unary(SEND, response_deserializer=message_pb2.AppendReply.FromString)
        try:
            signed = sign(request.SerializeToString())
            reply = await ask(signed, metadata=(*metadata, *more), timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            described = error_in(error.trailing_metadata())
            return described.symbol if described is not None else str(error)
        return common_pb2.PutMessageStatus.Name(reply.status)


def test_users_and_rules_hold_at_a_follower_and_after_a_failover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("access_key=brokers\nsecret_key=secret-of-brokers\n")
    keys.chmod(0o600)
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", str(keys))
    files = [f"{name}={keys}" for name in ("admin_credentials_file", "config_credentials_file")]
    settings = ["authentication_enable=true", "authorization_enable=true", *files]
    given = [part for one in settings for part in ("--set", one)]
    with running(tmp_path / "cluster", "--nodes", "3", *SMALL, *given) as command:
        ready(command)
        first, second, third = (str(command.rows[name]["address"]) for name in NAMES)
        objects(first, "topic", "create", "orders", "--queues", "1")
        for name in ("alice", "mallory"):
            secret = tmp_path / name
            secret.write_text(f"secret-of-{name}\n")
            secret.chmod(0o600)
            objects(first, "user", "create", name, "--secret-file", str(secret))
        objects(first, "acl", "allow", "alice", "Pub", "Topic:orders")
        until("the follower has the rule", lambda: asyncio.run(sent_by(third, "alice")) == "PUT_OK")
        assert asyncio.run(sent_by(third, "mallory")) == "ACCESS_DENIED"
        forged = ((PEER_KEY, "ipv4:127.0.0.1:1"), (CALLER_KEY, b"alice"))
        assert asyncio.run(sent_by(first, "mallory", *forged)) == "AUTHENTICATION_FAILED"
        kill(command, FIRST)
        promote(command, SECOND)
        for address in (second, third):
            until("alice may send", lambda at=address: asyncio.run(sent_by(at, "alice")) == "PUT_OK")  # type: ignore[misc]
            assert asyncio.run(sent_by(address, "mallory")) == "ACCESS_DENIED"
        assert command.ended(signal.SIGTERM)[0] == 0


async def remoting_at(address: str) -> list[int]:
    """The codes of a route, a heartbeat, a send, a lock and a pull, on one connection."""
    beat = {"clientID": "c1", "consumerDataSet": [], "producerDataSet": [{"groupName": "producers"}]}
    lock = {"consumerGroup": "g", "clientId": "c1", "mqSet": [QUEUE]}
    async with remoting_client(address) as client:
        answers = [
            await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}),
            await client.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode()),
            await client.send("orders", b"by remoting"),
            await client.ask(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(lock).encode()),
            await client.pull("orders", 0),
        ]
        assert b"by remoting" in answers[-1].body
        return [one.code for one in answers]


def test_a_remoting_client_at_a_follower_was_cut_off(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "3", *SMALL, "--set", "remoting_enable=true") as command:
        ready(command)
        command.run("topic", "create", "orders", "--queues", "1")
        third = str(command.rows[THIRD]["address"])

        def is_served() -> bool:
            try:
                return asyncio.run(remoting_at(third)) == [ResponseCode.SUCCESS] * 5
            except (OSError, TimeoutError):
                return False

        until("the follower knows its leader, which serves remoting clients", is_served)
        kill(command, FIRST)
        promote(command, SECOND)
        until("the next leader serves remoting clients of the follower", is_served)
        assert command.ended(signal.SIGTERM)[0] == 0


def test_a_call_by_tls_at_a_follower_was_refused(tmp_path: Path) -> None:
    """The nodes are on one machine: the hop to the leader is on loopback."""
    certificates = Certificates.made(tmp_path / "certificates")
    kept = [kept_port() for _ in range(5)]
    ports = [port_of(one) for one in kept]
    a, b = Broker(tmp_path, "a", (ports[0], ports[1])), Broker(tmp_path, "b", (ports[2], ports[3]))
    nodes = f"replica_nodes=a@{a.address}/{a.streams},b@{b.address}/{b.streams}"
    files = f"tls_certificate={certificates.pem('server')}", f"tls_key={certificates.key('server')}"
    try:
        a.start(nodes)
        b.start(nodes, f"tls_listen=127.0.0.1:{ports[4]}", *files)
        until("both are in sync", lambda: a.leads(["a", "b"]))
        objects(a.address, "topic", "create", "orders", "--queues", "1")
        trusted = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
        with grpc.secure_channel(f"localhost:{ports[4]}", trusted) as channel:
            assert send(channel, b"by TLS").status == common_pb2.PUT_OK
        assert [one.stop() for one in (b, a)] == [0, 0]
    finally:
        for port in kept:
            port.close()
        for one in (a, b):
            if one.process is not None and one.process.poll() is None:
                one.stop(signal.SIGKILL)
