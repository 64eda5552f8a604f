"""A real broker that also listens by TLS."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.stubs import ADMIN, stub_of
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.tls import development_identity
from trovemq_proto.v1 import admin_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

TLS = ("--tls-listen", "127.0.0.1:0")


def event(broker: BrokerProcess, name: str) -> dict[str, Any]:
    (line,) = [line for line in broker.lines if line["event"] == name]
    return line


async def topics_by_tls(address: str, certificate: bytes) -> list[str]:
    """Makes a topic and lists the topics, as a client that trusts this certificate alone."""
    credentials = grpc.ssl_channel_credentials(certificate)
    async with grpc.aio.secure_channel(address, credentials) as channel:
        stub: Any = stub_of(ADMIN, channel)
        await stub.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=1), timeout=60)
        reply = await stub.ListTopics(admin_pb2.ListTopicsRequest(), timeout=60)
        return [topic.topic for topic in reply.topics]


async def test_a_broker_shows_a_development_certificate_and_says_so(tmp_path: Path) -> None:
    with running_broker(tmp_path / "store", arguments=TLS) as broker:
        address = event(broker, "broker.started")["tls"]
        at = parse_address(address)
        shown = ssl.get_server_certificate((at.host, at.port))
        line = event(broker, "tls.development_certificate")
        assert line["level"] == "warning"
        assert await topics_by_tls(address, shown.encode()) == ["orders"]
        assert broker.stop() == 0


async def test_a_broker_shows_the_certificate_that_was_given(tmp_path: Path) -> None:
    certificate, key = tmp_path / "x.crt", tmp_path / "x.key"
    identity = development_identity([], datetime.now(UTC))
    certificate.write_bytes(identity.certificate)
    key.write_bytes(identity.key)
    arguments = [*TLS, "--tls-certificate", str(certificate), "--tls-key", str(key)]
    with running_broker(tmp_path / "store", arguments=arguments) as broker:
        assert event(broker, "tls.certificate")["sha256"] == identity.fingerprint
        address = event(broker, "broker.started")["tls"]
        assert await topics_by_tls(address, identity.certificate) == ["orders"]


async def test_a_broker_without_its_certificate_does_not_start(tmp_path: Path) -> None:
    missing = tmp_path / "missing.crt"
    broker = BrokerProcess(
        tmp_path / "store", arguments=[*TLS, "--tls-certificate", str(missing), "--tls-key", str(missing)]
    )
    assert broker.wait() == 2
    assert (
        broker.lines[-1]["reason"] == f"tls_certificate {missing} cannot be read: No such file or directory"
    )
