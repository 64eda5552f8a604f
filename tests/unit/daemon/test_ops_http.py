"""Operations HTTP: metrics, health, readiness, in the test's own loop."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from prometheus_client import Counter

from tests.support.certificates import Certificates
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import AddressInUseError, SettingsError
from trovemq_daemon.metrics import new_registry
from trovemq_daemon.ops_http import OpsHttp, Readiness
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto.bounded_http import PLAIN_HTTP_ANSWER

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def served(readiness: Readiness) -> AsyncIterator[tuple[httpx.AsyncClient, Address]]:
    registry = new_registry("1.2.3")
    Counter("some_messages", "For the test.", registry=registry).inc(3)
    http = OpsHttp(registry, readiness)
    address = await http.start(Address("127.0.0.1", 0))
    try:
        # Without `verify` a client reads all certificates of the system first.
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, verify=False) as client:
            yield client, address
    finally:
        await http.stop()


async def test_readiness_names_what_is_wrong() -> None:
    detail = "index is behind"
    readiness = Readiness()
    readiness.add("store", lambda: "")
    readiness.add("index", lambda: detail)
    async with served(readiness) as (client, _):
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["index"] == {"ok": False, "detail": "index is behind"}
        assert answer.json()["checks"]["store"] == {"ok": True, "detail": ""}
        assert answer.json()["reasons"] == ["index: index is behind"]
        detail = ""
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["ready"], answer.json()["reasons"]) == (200, True, [])
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405


async def test_the_first_page_links_to_the_others_and_to_the_console() -> None:
    http = OpsHttp(new_registry("1"), Readiness(), name="<b>", console_url='http://c:8090/?a="b"')
    address = await http.start(Address("127.0.0.1", 0))
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            answer = await client.get("/")
    finally:
        await http.stop()
    assert answer.status_code == 200
    assert "<h1>&lt;b&gt;</h1>" in answer.text
    assert 'href="http://c:8090/?a=&quot;b&quot;"' in answer.text
    assert all(f'href="/{page}"' in answer.text for page in ("healthz", "readyz", "metrics"))
    assert answer.headers["content-security-policy"] == "default-src 'none'"


HOSTILE_TARGETS = (
    b"/../../x",
    b"/metrics/../../x",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"/..%2f..%2fetc%2fpasswd",
    b"/metrics%00",
    b"/metrics/",
    b"//metrics",
    b"/" + b"x" * 60_000,
    b"/\xff\xfe",
    b"*",
    b"http://elsewhere/metrics/x",
)
HOSTILE_QUERIES = (
    b"name[]=../../x",
    b"&".join(b"name[]=%d" % number for number in range(5_000)),
    b"=" * 30_000,
    b"%",
    b"%zz=%ff%00",
    b"a=\xff\xfe",
    b"name%5B%5D=" + b"%2e%2e%2f" * 3_000,
)


async def asked(address: Address, request: bytes) -> tuple[int, bytes]:
    """Status and body of what is sent byte by byte; 0 where the connection is just closed."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        await writer.drain()
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]) if head else 0, body
    finally:
        writer.close()


def get(target: bytes) -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("target", HOSTILE_TARGETS, ids=lambda target: repr(target[:24]))
async def test_no_path_leads_out_of_the_three_pages(target: bytes) -> None:
    async with served(Readiness()) as (_, address):
        for query in (b"", *(b"?" + query for query in HOSTILE_QUERIES)):
            status, body = await asked(address, get(target + query))
            assert 300 <= status < 500, (status, body)
            assert len(body) < 100
            assert b"root:" not in body
        assert (await asked(address, get(b"/healthz")))[0] == 200


@pytest.mark.parametrize("query", HOSTILE_QUERIES, ids=lambda query: repr(query[:24]))
async def test_a_query_changes_nothing_of_a_page(query: bytes) -> None:
    async with served(Readiness()) as (_, address):
        status, body = await asked(address, get(b"/metrics?" + query))
        assert status == 400 or (status == 200 and b"some_messages_total 3.0" in body)
        assert (await asked(address, get(b"/healthz?" + query)))[0] in (200, 400)
        assert (await asked(address, get(b"/healthz")))[0] == 200


async def test_metrics_have_no_created_series() -> None:
    async with served(Readiness()) as (client, _):
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert "some_messages_total 3.0" in answer.text
        assert 'trovemq_build_info{version="1.2.3"} 1.0' in answer.text
        assert "_created" not in answer.text


async def test_signal_handlers_stay_as_they_are() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with served(Readiness()) as (client, _):
        await client.get("/healthz")
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_an_address_in_use_is_said_at_once() -> None:
    async with served(Readiness()) as (_, address):
        with pytest.raises(AddressInUseError, match=str(address)):
            await OpsHttp(new_registry("x"), Readiness()).start(address)


async def test_stopping_what_never_started_is_not_an_error() -> None:
    await OpsHttp(new_registry("x"), Readiness()).stop()


async def test_it_serves_by_tls_alone_where_that_is_set(tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path)
    http = OpsHttp(new_registry("1.2.3"), Readiness())
    files = certificates.pem("server"), certificates.key("server")
    address = await http.start(Address("127.0.0.1", 0), files)
    try:
        trusting = ssl.create_default_context(cafile=str(certificates.ca))
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
            assert (await client.get(f"https://{address}/healthz")).status_code == 200
    finally:
        await http.stop()
    with pytest.raises(SettingsError, match=r"client\.key is not the key of the certificate"):
        await http.start(Address("127.0.0.1", 0), (certificates.pem("server"), certificates.key("client")))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_plain_client_at_the_https_port_got_an_empty_answer(tmp_path: Path, method: str) -> None:
    certificates = Certificates.made(tmp_path)
    http = OpsHttp(new_registry("1"), Readiness())
    files = certificates.pem("server"), certificates.key("server")
    address = await http.start(Address("127.0.0.1", 0), files)
    try:
        for _ in range(2):
            async with httpx.AsyncClient(verify=False, trust_env=False) as client:
                answer = await client.request(method, f"http://{address}/healthz")
            assert answer.status_code == 400
            assert method == "HEAD" or answer.text == "This port speaks HTTPS: use https:// in the address.\n"
            http.replace_tls(*files)
    finally:
        await http.stop()


@pytest.mark.parametrize("garbage", [b"\0" * 40, b"SSH-2.0-x\r\n", PLAIN_HTTP_ANSWER])
async def test_other_bytes_at_the_https_port_end_the_connection(tmp_path: Path, garbage: bytes) -> None:
    certificates = Certificates.made(tmp_path)
    http = OpsHttp(new_registry("1"), Readiness())
    address = await http.start(
        Address("127.0.0.1", 0), (certificates.pem("server"), certificates.key("server"))
    )
    try:
        assert await asked(address, garbage) == (0, b"")
    finally:
        await http.stop()


async def test_bytes_after_a_plain_request_at_the_https_port_end_the_connection(tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path)
    http = OpsHttp(new_registry("1"), Readiness())
    address = await http.start(
        Address("127.0.0.1", 0), (certificates.pem("server"), certificates.key("server"))
    )
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(get(b"/healthz"))
        assert await reader.readexactly(len(PLAIN_HTTP_ANSWER)) == PLAIN_HTTP_ANSWER
        writer.write(get(b"/healthz"))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    finally:
        await http.stop()


async def test_a_certificate_that_is_replaced_is_shown_to_the_next_connection(tmp_path: Path) -> None:
    old, new = Certificates.made(tmp_path / "old"), Certificates.made(tmp_path / "new")
    http = OpsHttp(new_registry("1.2.3"), Readiness())
    address = await http.start(Address("127.0.0.1", 0), (old.pem("server"), old.key("server")))

    async def reaches(trusted: Certificates) -> bool:
        trusting = ssl.create_default_context(cafile=str(trusted.ca))
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
            try:
                return (await client.get(f"https://{address}/healthz")).status_code == 200
            except httpx.ConnectError:
                return False

    try:
        assert await reaches(old)
        http.replace_tls(new.pem("server"), new.key("server"))
        assert (await reaches(old), await reaches(new)) == (False, True)
        with pytest.raises(ssl.SSLError):
            http.replace_tls(old.pem("server"), new.key("server"))
        assert await reaches(new)
    finally:
        await http.stop()


async def test_tls_without_a_certificate_is_an_error_of_the_settings() -> None:
    assert "http_tls needs tls_certificate and tls_key" in NameserverSettings(http_tls=True).problems()
    given = NameserverSettings(http_tls=True, tls_certificate="c", tls_key="k")
    assert list(given.problems()) == []
    assert given.http_tls_files == (Path("c"), Path("k"))


async def test_the_end_slept_for_a_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an idle connection, and without one: only open requests are waited for."""

    async def slept(_server: uvicorn.Server, _sockets: object = None) -> None:
        raise AssertionError("nothing is open")

    monkeypatch.setattr(uvicorn.Server, "shutdown", slept)
    http = OpsHttp(new_registry("1.2.3"), Readiness())
    address = await http.start(Address("127.0.0.1", 0))
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, verify=False) as client:
        assert (await client.get("/healthz")).status_code == 200
        await http.stop()
    with pytest.raises(OSError, match="refused"):
        await asyncio.open_connection(address.host, address.port)
