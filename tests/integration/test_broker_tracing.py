"""A real broker that exports its spans by OTLP, beside those of a real client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import trovemq
from tests.support.engine import record as plain_record
from tests.support.engine import with_crc_property
from trovemq import ClientOptions
from trovemq.otel import Tracing
from trovemq.testing import BrokerProcess
from trovemq_broker.daemon.tracing import open_tracing
from trovemq_broker.server.monitoring import tracing
from trovemq_daemon.errors import SettingsError
from trovemq_proto.records import RecordBatch

pytestmark = pytest.mark.slow

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BOUND_S = 20  # two attempts of one second each, and a busy machine


class Collector:
    """An OTLP receiver; `spans` has those that came."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.endpoint = f"http://{address[0]}:{address[1]}/v1/traces"
        self.spans: list[Span] = []

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """No test reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(("127.0.0.1", server.server_address[1]))
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


async def send_and_receive(address: str, followed: Tracing) -> None:
    async with trovemq.connect(address) as client:
        await client.admin.create_topic("orders", queue_count=1)
        await client.send("orders", b"nobody follows this")
    async with trovemq.connect(address, options=ClientOptions(tracing=followed)) as client:
        await client.send("orders", b"followed")
        async with client.subscribe("orders", group="billing", start="earliest") as messages:
            for _ in range(2):
                await (await anext(messages)).ack()


def test_spans_of_the_broker_join_those_of_the_client(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with collector() as found:
        settings = ["--set", f"otlp_endpoint={found.endpoint}"]
        with BrokerProcess(store=tmp_path / "store", arguments=settings) as broker:
            asyncio.run(send_and_receive(broker.address, Tracing(provider)))
            assert broker.stop() == 0  # the last spans are exported before the end
    (append,), delivered = found.named("append orders"), found.named("deliver orders")
    (send,) = named(exporter, "send orders")
    assert append.trace_id == send.context.trace_id.to_bytes(16)
    assert append.parent_span_id == send.context.span_id.to_bytes(8)
    assert append.start_time_unix_nano < append.end_time_unix_nano
    links = [link.span_id for span in delivered for link in span.links]
    assert links == [append.parent_span_id], "a message in no trace has no link"
    (ack,) = found.named("ack orders")
    assert [link.span_id for link in ack.links] == links
    assert len(found.spans) == 3
    assert b"followed" not in b"".join(span.SerializeToString() for span in found.spans), "no body is shown"


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_collector_that_is_not_there_delays_the_end_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "EXPORT_SECONDS_MAX", 1)
    made = tracing.otlp_tracing("http://127.0.0.1:9/v1/traces", "broker-a", "1")
    record = with_crc_property(plain_record(b"x", properties={"traceparent": FOREIGN}))
    spans = made.begin_append("orders", 0, RecordBatch.split(record))
    assert spans is not None
    spans.ended(None)
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < BOUND_S


def test_nothing_of_opentelemetry_is_imported_where_no_spans_are_wanted() -> None:
    program = (
        "import sys, trovemq_broker.daemon.app as app; assert app.open_tracing('', 'a', '1') is None; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_exporter_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "trovemq_broker.server.monitoring.tracing", raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'trovemq\[otlp\]'"):
        open_tracing("http://127.0.0.1:4318/v1/traces", "broker-a", "1")
