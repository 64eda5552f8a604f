"""A nameserver and a broker that serve and register by TLS, and who comes in: SDK, command line, Spark."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import trovemq
from tests.support.certificates import Certificates
from trovemq import ClientOptions, TlsOptions, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess, free_port
from trovemq_proto.channels import TRANSPORTS, GrpcTransport
from trovemq_spark.connection_options import ConnectionOptions
from trovemq_spark.sources.live_client import Cluster, Selection, queue_spans

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@dataclass(frozen=True)
class Secured:
    """What a client needs to come in, and the transport of both ends."""

    nameserver: str
    tls: TlsOptions
    transport: GrpcTransport

    @property
    def environment(self) -> dict[str, str]:
        return {
            "TROVEMQ_SERVER": self.nameserver,
            "TROVEMQ_GRPC_TRANSPORT": self.transport,
            "TROVEMQ_TLS_CA": str(self.tls.ca),
            "TROVEMQ_TLS_CERT": str(self.tls.certificate),
            "TROVEMQ_TLS_KEY": str(self.tls.key),
        }

    def connect(self) -> trovemq.client.Connecting:
        options = ClientOptions(grpc_transport=self.transport)
        return trovemq.connect(self.nameserver, wait_ms=20_000, tls=self.tls, options=options)


@pytest.fixture(scope="module", params=TRANSPORTS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    certificates = Certificates.made(tmp_path_factory.mktemp("certificates"))
    ca, pem, key = (
        str(path) for path in (certificates.ca, certificates.pem("server"), certificates.key("server"))
    )
    transport: GrpcTransport = request.param

    def serving(port: int) -> list[str]:
        files = ["--tls-certificate", pem, "--tls-key", key, "--set", f"tls_client_ca={ca}"]
        return ["--tls-listen", f"127.0.0.1:{port}", *files, "--set", f"grpc_transport={transport}"]

    names_port, broker_port = free_port(), free_port()
    by_tls = f"127.0.0.1:{names_port}"
    registering = ["--set", "nameserver_tls=true", "--set", f"nameserver_tls_ca={ca}"]
    arguments = [*serving(broker_port), *registering]
    with (
        NameserverProcess(arguments=serving(names_port)),
        BrokerProcess(nameservers=[by_tls], arguments=arguments),
    ):
        shown = TlsOptions(
            ca=certificates.ca, certificate=certificates.pem("client"), key=certificates.key("client")
        )
        made = Secured(by_tls, shown, transport)
        asyncio.run(registered(made))
        yield made


async def registered(secured: Secured) -> None:
    """Returns when the broker is in the routes: it is ready before that."""
    async with secured.connect() as client:
        routes = client._pool.routes
        assert await routes.wait_until(lambda: bool(routes.state.brokers), 60)


async def test_the_sdk_comes_to_the_broker_through_the_nameserver(secured: Secured) -> None:
    async with secured.connect() as client:
        await client.admin.create_topic("sdk", queue_count=2)
        receipts = await asyncio.gather(*(client.send("sdk", b"%d" % number) for number in range(50)))
        (found,) = (await client.get(receipts[7].offset_msg_id)).messages
        assert found.body == b"7"
        async with client.subscribe("sdk", group="g") as messages:
            taken = set()
            async for message in messages:
                await message.ack()
                taken.add(message.body)
                if len(taken) == 50:
                    break
        (route,) = (await client.admin.cluster()).brokers
        assert route.broker.tls_address not in ("", route.broker.address)


async def test_without_its_certificate_a_client_is_refused(secured: Secured) -> None:
    options = ClientOptions(grpc_transport=secured.transport)
    for tls, text in (
        (TlsOptions(ca=secured.tls.ca), "asks for a client's certificate"),
        (False, "speaks TLS"),
    ):
        with pytest.raises(TroveError, match=text) as refused:
            await trovemq.connect(secured.nameserver, tls=tls, options=options)
        assert refused.value.spec is errors.TLS_FAILED


async def test_the_command_line_takes_variables_and_options(secured: Secured, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trovemq.cli", "--json", *arguments]
        environment = {**os.environ, **secured.environment}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120, check=False
        )

    created = await asyncio.to_thread(run, "topic", "create", "cli", "--queues", "1")
    assert created.returncode == 0, created.stderr
    sent = await asyncio.to_thread(run, "send", "cli", "hello", "--key", "k1")
    assert json.loads(sent.stdout)["offsetMsgId"]
    refused = await asyncio.to_thread(run, "cluster", "--no-tls")
    assert json.loads(refused.stderr)["error"] == "TLS_FAILED"


async def test_spark_s_reader_comes_in_by_its_options(secured: Secured) -> None:
    connection = ConnectionOptions(
        tls_ca=str(secured.tls.ca),
        tls_cert=str(secured.tls.certificate),
        tls_key=str(secured.tls.key),
        grpc_transport=secured.transport,
    )
    async with secured.connect() as client:
        await client.admin.create_topic("spark", queue_count=3, exist_ok=True)
    cluster = Cluster(secured.nameserver, 10_000, connection)
    spans = await asyncio.to_thread(
        cluster.ask, lambda client: queue_spans(client, Selection(("spark",))), wait_ms=20_000
    )
    assert len(spans) == 3
