"""Records of TLS without data are work that nothing else counts: a peer may send few of them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

import trovemq_rpc as rpc
from tests.support.hostile_tls import HostileTls
from trovemq_daemon.tls import development_identity
from trovemq_rpc.tls import SILENT_RECORDS_MAX, SIZE_PER_SILENT_RECORD, Tls

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
VIEW = memoryview(bytearray(20_000))


def connected(version: ssl.TLSVersion, key_log: Path) -> tuple[Tls, HostileTls]:
    identity = development_identity((), datetime.now(UTC))
    server = Tls(rpc.ssl_server_credentials(((identity.key, identity.certificate),)).context, True)
    client = HostileTls(version, key_log)
    received = b""
    while not server.established:
        sent, _ = client.handshake(received)
        server.feed(sent)
        server.handshake()
        received = server.take_output()
    client.handshake(received)
    return server, client


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flood_of_records_without_data_is_refused_after_64(version: ssl.TLSVersion, tmp_path: Path) -> None:
    server, client = connected(version, tmp_path / "keys")
    server.feed(b"".join(client.silent() for _ in range(1_000)))
    with pytest.raises(ssl.SSLError, match="too many records without data"):
        server.read_into(VIEW)
    assert server.silent_records == SILENT_RECORDS_MAX + 1
    assert len(server.take_output()) < 10_000, "alerts of all attempts would be held"


@pytest.mark.parametrize("version", VERSIONS)
def test_data_between_them_changes_nothing_unless_it_is_much(version: ssl.TLSVersion, tmp_path: Path) -> None:
    server, client = connected(version, tmp_path / "keys")
    left = SILENT_RECORDS_MAX - server.silent_records
    for _ in range(left):
        server.feed(client.silent() + client.data(b"x"))
        assert server.read_into(VIEW) == 1
        assert not server.has_input
    server.feed(client.silent())
    with pytest.raises(ssl.SSLError):
        server.read_into(VIEW)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_peer_that_sends_much_may_renew_its_key_now_and_then(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    server, client = connected(version, tmp_path / "keys")
    for _ in range(2 * SILENT_RECORDS_MAX):
        for _ in range(SIZE_PER_SILENT_RECORD // 16_384):
            server.feed(client.data(bytes(16_384)))
            assert server.read_into(VIEW) == 16_384
        server.feed(client.silent())
        assert server.read_into(VIEW) == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_records_that_come_in_pieces_are_read_when_they_are_whole(
    version: ssl.TLSVersion, size: int, tmp_path: Path
) -> None:
    server, client = connected(version, tmp_path / "keys")
    before = server.silent_records
    sent, got = client.data(b"one") + client.data(b"two") + client.silent() + client.data(b"three"), b""
    for begin in range(0, len(sent), size):
        server.feed(sent[begin : begin + size])
        while read := server.read_into(VIEW):
            got += VIEW[:read]
    assert got == b"onetwothree"
    assert not server.has_input
    assert server.silent_records == before + 1
