"""Who may do what, on real brokers: our client, RocketMQ's signature, live rules; secrets leak nowhere."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import trovemq
from tests.support.broker_process import BrokerProcess, Stubs, error_of, running_broker
from tests.support.certificates import Certificates
from trovemq_proto.authentication.credentials import Credentials, parse_credentials
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, message_pb2, security_pb2

pytestmark = pytest.mark.slow

ON = ("authenticationEnabled=true", "authorizationEnabled=true", "autoCreateSubscriptionGroup=true")
CANARY = "canary-secret-in-no-log"
TRANSPORTS = ("grpcio", "trovemq")
BODY = b"canary-body-in-no-log"


@pytest.fixture(params=TRANSPORTS)
def settings(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return (*ON, f"grpc_transport={request.param}")


def admin_of(store: Path) -> Credentials:
    path = store.with_name(f"{store.name}.admin-credentials")
    assert path.stat().st_mode & 0o777 == 0o600
    return parse_credentials(path.read_text(encoding="utf-8"))


@asynccontextmanager
async def connected(address: str, who: Credentials) -> AsyncIterator[trovemq.Client]:
    async with trovemq.connect(address, access_key=who.access_key, secret_key=who.secret_key) as client:
        yield client


async def ask(client: trovemq.Client, method: str, request: Any, reply: Any) -> Any:
    """A call of SecurityService over the client's own connection."""
    (broker,) = client._pool.routes.brokers(None)
    return await client._pool.connection(broker).ask(f"SecurityService/{method}", request, reply.FromString)


async def make_user(client: trovemq.Client, name: str) -> Credentials:
    request = security_pb2.CreateUserRequest(access_key=name, secret=f"{CANARY}-{name}")
    made = await ask(client, "CreateUser", request, security_pb2.UserSecret)
    assert made.secret == "", "the caller knows it"
    return Credentials(name, f"{CANARY}-{name}")


async def allow(
    client: trovemq.Client, name: str, actions: str, resource: str, *, yes: bool = True
) -> security_pb2.AccessRule:
    request = security_pb2.CreateRuleRequest(access_key=name, allow=yes, actions=actions, resource=resource)
    rule: security_pb2.AccessRule = await ask(client, "CreateRule", request, security_pb2.AccessRule)
    return rule


def rocketmq_metadata(who: Credentials | None, client_id: str = "c") -> tuple[tuple[str, str], ...]:
    date = "20261123T001500Z"
    own = (("x-mq-client-id", client_id), ("x-mq-date-time", date))
    if who is None:
        return own
    signature = hmac.new(who.secret_key.encode(), date.encode(), "sha1").hexdigest().upper()
    text = f"MQv2-HMAC-SHA1 Credential={who.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (*own, ("authorization", text))


async def send_v2(channel: Any, who: Credentials | None, topic: str = "orders") -> Any:
    system = v2.SystemProperties(message_id="01" + "0" * 32, body_encoding=v2.IDENTITY)
    message = v2.Message(topic=v2.Resource(name=topic), body=BODY, system_properties=system)
    call = channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        request_serializer=service_pb2.SendMessageRequest.SerializeToString,
        response_deserializer=service_pb2.SendMessageResponse.FromString,
    )
    return await call(service_pb2.SendMessageRequest(messages=[message]), metadata=rocketmq_metadata(who))


async def telemetry_v2(channel: Any, who: Credentials | None, topic: str) -> list[Any]:
    """The broker's messages to a producer of the topic, until it ends the stream or has answered once."""
    call = channel.stream_stream(
        "/apache.rocketmq.v2.MessagingService/Telemetry",
        request_serializer=service_pb2.TelemetryCommand.SerializeToString,
        response_deserializer=service_pb2.TelemetryCommand.FromString,
    )(metadata=rocketmq_metadata(who))
    settings = v2.Settings(
        client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[v2.Resource(name=topic)])
    )
    await call.write(service_pb2.TelemetryCommand(settings=settings))
    answer = await call.read()
    call.cancel()
    return [] if answer is grpc.aio.EOF else [answer]


async def refusal(attempt: Callable[[], Any]) -> str:
    try:
        await attempt()
    except TroveError as error:
        return error.symbol
    return ""


def run(program: Any) -> None:
    asyncio.run(program)


def test_rules_say_what_our_client_may_do(tmp_path: Path, settings: tuple[str, ...]) -> None:
    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        async with connected(broker.address, admin) as client:
            for topic in ("orders", "secret"):
                await client.admin.create_topic(topic, queue_count=1)
            await client.send("secret", BODY, keys=["k"])
            alice = await make_user(client, "alice")
            await allow(client, "alice", "Pub", "Topic:orders")
            async with connected(broker.address, alice) as own:
                receipt = await own.send("orders", BODY)
                assert receipt.status == "PUT_OK"
                topics = await own.admin.list_topics()
                assert [topic.topic for topic in topics] == ["orders"]
                for attempt in (
                    lambda: own.send("secret", BODY),
                    lambda: own.query("orders", "k"),
                    lambda: own.get(receipt.offset_msg_id),
                    lambda: own.admin.delete_topic("orders"),
                    lambda: own.admin.create_topic("another"),
                    lambda: own.admin.groups.create("billing"),
                    lambda: make_user(own, "mallory"),
                    lambda: own.admin.describe_topic("secret"),
                    lambda: own.admin.describe_topic("nowhere"),
                ):
                    assert await refusal(attempt) in ("ACCESS_DENIED", "TOPIC_NOT_FOUND")
                await allow(client, "alice", "Sub", "Topic:orders")
                await allow(client, "alice", "Sub", "Group:billing*")
                async with own.subscribe("orders", group="billing-1") as messages:
                    async for message in messages:
                        async with message.process():
                            assert message.body == BODY
                        break
                denied = await allow(client, "alice", "Pub", "Topic:*", yes=False)
                assert await refusal(lambda: own.send("orders", BODY)) == "ACCESS_DENIED"
                await ask(
                    client,
                    "DeleteRule",
                    security_pb2.DeleteRuleRequest(number=denied.number),
                    security_pb2.DeleteRuleReply,
                )
                await own.send("orders", BODY)

    with running_broker(tmp_path / "store", *settings) as broker:
        run(program(broker, admin_of(tmp_path / "store")))
        check_canaries(broker)


def test_a_denied_frame_leaves_the_others_of_its_stream(tmp_path: Path, settings: tuple[str, ...]) -> None:
    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        async with connected(broker.address, admin) as client:
            for topic in ("orders", "secret"):
                await client.admin.create_topic(topic, queue_count=1)
            alice = await make_user(client, "alice")
            await allow(client, "alice", "Pub,Get", "Topic:orders")
            await allow(client, "alice", "Get", "Topic:secret")
            async with connected(broker.address, alice) as own:
                sends = [own.send(("orders", "secret")[number % 2], BODY) for number in range(20)]
                outcomes = await asyncio.gather(*sends, return_exceptions=True)
            symbols = [getattr(outcome, "symbol", "stored") for outcome in outcomes]
            assert symbols == ["stored", "ACCESS_DENIED"] * 10

    with running_broker(tmp_path / "store", *settings) as broker:
        run(program(broker, admin_of(tmp_path / "store")))


def test_a_user_who_is_disabled_is_out_at_once(tmp_path: Path, settings: tuple[str, ...]) -> None:
    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        async with connected(broker.address, admin) as client:
            await client.admin.create_topic("orders", queue_count=1)
            alice = await make_user(client, "alice")
            await allow(client, "alice", "Pub", "Topic:orders")
            options = trovemq.ClientOptions(delivery_timeout_ms=2_000, send_attempts_max=2)
            async with trovemq.connect(
                broker.address, access_key="alice", secret_key=alice.secret_key, options=options
            ) as own:
                await own.send("orders", BODY)
                request = security_pb2.AlterUserRequest(access_key="alice", enabled=False)
                await ask(client, "AlterUser", request, security_pb2.UserDescription)
                assert await refusal(lambda: own.send("orders", BODY)) != ""
                assert await refusal(own.admin.list_topics) == "AUTHENTICATION_FAILED"

    with running_broker(tmp_path / "store", *settings) as broker:
        run(program(broker, admin_of(tmp_path / "store")))


def test_a_client_goes_on_after_its_broker_was_restarted(tmp_path: Path, settings: tuple[str, ...]) -> None:
    store, port = tmp_path / "store", "127.0.0.1:0"
    with running_broker(store, *settings) as broker:
        port = broker.address
        admin = admin_of(store)

        async def before() -> None:
            async with connected(port, admin) as client:
                await client.admin.create_topic("orders", queue_count=1)

        run(before())

        async def across() -> None:
            async with connected(port, admin) as client:
                await client.send("orders", b"1")
                await asyncio.to_thread(broker.stop)
                with running_broker(store, *settings, arguments=("--listen", port)):
                    await client.send("orders", b"2")
                    found = [
                        message async for message in client.pull("orders", queue_id=0, offset=0, follow=False)
                    ]
                    assert [message.body for message in found] == [b"1", b"2"]

        run(across())


def test_rocketmqs_signature_at_its_own_door(tmp_path: Path, settings: tuple[str, ...]) -> None:
    conf = tmp_path / "broker.conf"
    user = json.dumps({"username": "rocketmq", "password": f"{CANARY}-init"})
    conf.write_text(f"initAuthenticationUser={user}\n", encoding="utf-8")
    first = Credentials("rocketmq", f"{CANARY}-init")

    async def program(broker: BrokerProcess) -> None:
        async with Stubs(broker.address) as stubs, connected(broker.address, first) as client:
            for topic in ("orders", "secret"):
                await client.admin.create_topic(topic, queue_count=1)
            alice = await make_user(client, "alice")
            await allow(client, "alice", "Pub", "Topic:orders")
            for who, topic, expected in (
                (first, "orders", v2.OK),
                (alice, "orders", v2.OK),
                (alice, "secret", v2.FORBIDDEN),
                (alice, "nowhere", v2.FORBIDDEN),
                (None, "orders", v2.UNAUTHORIZED),
                (Credentials("alice", "wrong-secret"), "orders", v2.UNAUTHORIZED),
                (Credentials("nobody", alice.secret_key), "orders", v2.UNAUTHORIZED),
                (Credentials("", ""), "orders", v2.UNAUTHORIZED),
            ):
                reply = await send_v2(stubs.channel, who, topic)
                assert reply.status.code == expected, (who, topic)
                said = await telemetry_v2(stubs.channel, who, topic)
                assert [one.status.code for one in said] == [expected], (who, topic)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stubs.admin.ListTopics(admin_pb2.ListTopicsRequest(), metadata=rocketmq_metadata(first))
            assert error_of(raised.value).symbol == "AUTHENTICATION_FAILED"

    with running_broker(tmp_path / "store", *settings, arguments=("--config", str(conf))) as broker:
        run(program(broker))
        check_canaries(broker)
    assert not (tmp_path / "store.admin-credentials").exists()


def test_nobody_calls_without_a_name_but_for_health(tmp_path: Path, settings: tuple[str, ...]) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async def program(broker: BrokerProcess) -> None:
        async with Stubs(broker.address) as stubs:
            health = health_pb2_grpc.HealthStub(stubs.channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stubs.messages.Send(message_pb2.SendRequest(topic="orders"))
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert error_of(raised.value).symbol == "AUTHENTICATION_FAILED"
            stream = stubs.messages.Append()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED

    with running_broker(tmp_path / "store", *settings) as broker:
        run(program(broker))
        status, page = broker.get("/metrics")
        assert status == 200
        assert 'trovemq_access_refusals_total{error="AUTHENTICATION_FAILED"}' in page


def test_a_producers_id_is_its_users_own(tmp_path: Path, settings: tuple[str, ...]) -> None:
    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        async with connected(broker.address, admin) as client:
            await client.admin.create_topic("orders", queue_count=1, options={"deduplicate": "1h"})
            users = [await make_user(client, name) for name in ("alice", "bob")]
            for user in users:
                await allow(client, user.access_key, "Pub,Get", "Topic:orders")
        alice, bob = users
        for first in (0, 1):
            async with connected(broker.address, alice) as own:
                async with own.producer("orders", producer_id="loader-1") as producer:
                    assert producer.producer_id == "alice:loader-1"
                    assert not (await producer.send(BODY)).duplicate
                found = await own.admin.next_sequences("orders", "alice:loader-1")
                assert list(found.values()) == [first + 1]
        async with connected(broker.address, bob) as other:
            async with other.producer("orders", producer_id="loader-1") as producer:
                assert not (await producer.send(BODY)).duplicate
            for producer_id in ("alice:loader-1", "loader-1"):
                asked = other.admin.next_sequences
                assert await refusal(lambda: asked("orders", producer_id)) == "ACCESS_DENIED"  # noqa: B023
            numbers = {"TROVEMQ_PRODUCER": "alice:loader-1", "TROVEMQ_SEQUENCE": "2"}
            assert await refusal(lambda: other.send("orders", BODY, properties=numbers)) != ""
            async with other.producer("orders", producer_id="alice:loader-1") as producer:
                assert await refusal(lambda: producer.send(BODY)) == "ACCESS_DENIED"

    with running_broker(tmp_path / "store", *settings) as broker:
        run(program(broker, admin_of(tmp_path / "store")))


def test_a_user_above_the_quota_is_slowed_then_refused(tmp_path: Path, settings: tuple[str, ...]) -> None:
    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        async with connected(broker.address, admin) as client:
            await client.admin.create_topic("orders", queue_count=1)
            users = [await make_user(client, name) for name in ("alice", "bob")]
            for user in users:
                await allow(client, user.access_key, "Pub,Sub,Get", "*")
            await client.admin.quotas.set("User:alice", trovemq.Quota(requests_per_s=20))
            async with (
                connected(broker.address, users[0]) as own,
                connected(broker.address, users[1]) as other,
            ):
                attempts = [own.admin.list_topics() for _ in range(300)]
                outcomes = await asyncio.gather(*attempts, return_exceptions=True)
                symbols = {getattr(one, "symbol", "answered") for one in outcomes}
                assert symbols == {"answered", "LIMIT_EXCEEDED"}
                await asyncio.gather(*(other.admin.list_topics() for _ in range(100)))
                (quota,) = await client.admin.quotas.list_all()
                assert quota.slowed > 0
                assert quota.refused > 0
                assert quota.open_calls > 0
                page = (await asyncio.to_thread(broker.get, "/metrics"))[1]
                for name in ("slowed", "refused"):
                    assert f'trovemq_quota_{name}_total{{quota="User:alice"}}' in page
                await client.admin.quotas.set("User:alice", trovemq.Quota())
                await own.admin.list_topics()
                await client.admin.quotas.set("User:*", trovemq.Quota(connections_max=1))
                await other.send("orders", BODY)
                with pytest.raises(TroveError) as raised:
                    async with connected(broker.address, users[1]):
                        pass
                assert raised.value.symbol == "LIMIT_EXCEEDED"

    with running_broker(tmp_path / "store", *settings) as broker:
        run(program(broker, admin_of(tmp_path / "store")))


def test_one_users_storm_ends_at_the_quota_and_others_go_on(tmp_path: Path) -> None:
    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        async with connected(broker.address, admin) as client:
            await client.admin.create_topic("orders", queue_count=1)
            mallory, alice = [await make_user(client, name) for name in ("mallory", "alice")]
            await allow(client, "mallory", "All", "*")
            await allow(client, "alice", "Pub", "Topic:orders")
            await client.admin.quotas.set("User:mallory", trovemq.Quota(topics_max=5, groups_max=2))
            async with connected(broker.address, mallory) as own, connected(broker.address, alice) as other:
                storm = asyncio.gather(
                    *(own.admin.create_topic(f"storm-{number}", 1) for number in range(60)),
                    return_exceptions=True,
                )
                for _ in range(20):
                    await other.send("orders", BODY)
                symbols = [getattr(one, "symbol", "made") for one in await storm]
                assert (symbols.count("made"), symbols.count("LIMIT_EXCEEDED")) == (5, 55)
                for number in range(2):
                    await own.admin.groups.create(f"group-{number}")
                assert await refusal(lambda: first_use(own, "by-its-first-use")) == "LIMIT_EXCEEDED"
                await own.admin.delete_topic((await own.admin.list_topics())[-1].topic)
                await own.admin.create_topic("one-more", 1)
                await client.admin.create_topic("not-mallorys", 1)
            (quota,) = await client.admin.quotas.list_all()
            assert quota.refused >= 56
            await client.admin.quotas.set("Address:*", trovemq.Quota(requests_per_s=1))
            wrong = Credentials("alice", "guess-guess-guess")
            guesses = [refusal(lambda: connect_once(broker.address, wrong)) for _ in range(10)]
            assert "LIMIT_EXCEEDED" in await asyncio.gather(*guesses)

    with running_broker(tmp_path / "store", *ON) as broker:
        run(program(broker, admin_of(tmp_path / "store")))


async def first_use(client: trovemq.Client, group: str) -> None:
    async with client.subscribe("orders", group=group) as messages:
        await anext(aiter(messages))


async def connect_once(address: str, who: Credentials) -> None:
    async with connected(address, who):
        pass


def test_a_certificate_is_a_user_without_a_secret(tmp_path: Path, settings: tuple[str, ...]) -> None:
    certificates = Certificates.made(tmp_path)
    for name in ("alice", "mallory"):
        certificates.client(name)
    tls = (
        "tls_listen=127.0.0.1:0",
        f"tls_certificate={certificates.pem('server')}",
        f"tls_key={certificates.key('server')}",
        f"tls_client_ca={certificates.ca}",
        "tls_client_identity=true",
    )

    def shown(name: str) -> trovemq.TlsOptions:
        return trovemq.TlsOptions(
            ca=certificates.ca, certificate=certificates.pem(name), key=certificates.key(name)
        )

    async def program(broker: BrokerProcess, admin: Credentials) -> None:
        by_tls = next(line["tls"] for line in broker.lines if line["event"] == "broker.started")
        async with connected(broker.address, admin) as client:
            for topic in ("orders", "secret"):
                await client.admin.create_topic(topic, queue_count=1)
            await make_user(client, "alice")
            await allow(client, "alice", "Pub,Get", "Topic:orders")
            async with trovemq.connect(by_tls, tls=shown("alice")) as own:
                assert (await own.send("orders", BODY)).status == "PUT_OK"
                assert await refusal(lambda: own.send("secret", BODY)) == "ACCESS_DENIED"
                assert await refusal(lambda: make_user(own, "eve")) == "ACCESS_DENIED"
                request = security_pb2.AlterUserRequest(access_key="alice", enabled=False)
                await ask(client, "AlterUser", request, security_pb2.UserDescription)
                assert await refusal(own.admin.list_topics) == "AUTHENTICATION_FAILED"
            for name in ("mallory", "client"):
                with pytest.raises(TroveError) as raised:
                    await trovemq.connect(by_tls, tls=shown(name))
                assert raised.value.symbol == "AUTHENTICATION_FAILED"

    with running_broker(tmp_path / "store", *settings, *tls) as broker:
        run(program(broker, admin_of(tmp_path / "store")))
        check_canaries(broker)


def test_without_its_key_file_a_store_with_users_does_not_open(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_broker(store, *ON) as broker:
        broker.stop()
    store.with_name("store.sealing-key").unlink()
    broker = BrokerProcess(store, ON)
    assert broker.address == ""
    assert broker.wait() != 0
    assert "SEALING_KEY_MISMATCH" in json.dumps(broker.lines)


def test_users_are_switched_on_for_a_store_with_messages_and_off(tmp_path: Path) -> None:
    store, any_secret = tmp_path / "store", Credentials("admin", "any-secret")

    async def without_users(address: str, topic: str) -> str:
        async with connected(address, any_secret) as client:
            await client.admin.create_topic(topic, queue_count=1)
            with pytest.raises(TroveError, match="AUTHENTICATION_DISABLED"):
                await make_user(client, "alice")
            return (await client.send(topic, BODY)).offset_msg_id

    async def with_users(address: str, message_id: str) -> None:
        assert await refusal(lambda: connect_once(address, any_secret)) == "AUTHENTICATION_FAILED"
        async with connected(address, admin_of(store)) as client:
            (found,) = (await client.get(message_id)).messages
            assert found.body == BODY

    with running_broker(store) as broker:
        message_id = asyncio.run(without_users(broker.address, "orders"))
        broker.stop()
    (store / "config" / "auth").mkdir()  # RocketMQ's own users
    with running_broker(store, *ON) as broker:
        run(with_users(broker.address, message_id))
        broker.stop()
        events = {line["event"]: line for line in broker.lines}
        assert events["access.rocketmq_users_ignored"]["level"] == "warning"
    with running_broker(store) as broker:
        run(without_users(broker.address, "as-before"))
        broker.stop()


def check_canaries(broker: BrokerProcess) -> None:
    """No secret and no body is in a log line, a metric or a page."""
    pages = [broker.get(path)[1] for path in ("/metrics", "/readyz", "/healthz")]
    broker.stop()
    text = json.dumps(broker.lines) + "".join(pages)
    assert "canary" not in text
