"""The transport's benchmark: its idle client, and its text where a row cannot be measured."""

from __future__ import annotations

import asyncio
import itertools
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.report import Report, median_ratio
from bench.rpc import idle
from bench.rpc.calls import BareEcho
from bench.rpc.grpc_go import measure_server_cpu
from bench.rpc.processes import Certificate

SETTINGS = bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)) + b"\0\3\0\0\0\x64"
PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"12345678"
PING_ACK = bytes((0, 0, 8, 6, 1, 0, 0, 0, 0)) + b"12345678"


class _Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


@given(st.sets(st.integers(0, len(SETTINGS + PING + PING_ACK))))
def test_an_idle_client_acknowledges_settings_and_pings_however_cut(cuts: set[int]) -> None:
    pings, transport = idle.Pings(), _Written()
    client = idle.IdleClient(pings)
    client.connection_made(transport)
    data = SETTINGS + PING + PING_ACK
    bounds = [0, *sorted(cuts), len(data)]
    for begin, end in itertools.pairwise(bounds):
        client.data_received(data[begin:end])
    assert transport.data == idle.OPENING + idle.SETTINGS_ACK + PING_ACK
    assert pings.answered == 1


def test_a_bare_echo_is_done_with_its_last_byte() -> None:
    async def echo() -> None:
        client, transport = BareEcho(), _Written()
        client.connection_made(transport)
        waiter = client.call(b"abc")
        client.data_received(b"ab")
        assert not waiter.done()
        client.data_received(b"c")
        await waiter
        assert transport.data == b"abc"

    asyncio.run(echo())


def test_a_ratio_compares_what_the_same_round_found() -> None:
    assert median_ratio([10, 400, 30], [5, 100, 20]) == 2


def _server_cpu(directory: Path) -> Report:
    report = Report("rpc")
    asyncio.run(measure_server_cpu(report, directory, 1))
    assert not report.figures
    return report


def test_where_go_is_absent_a_note_takes_its_rows_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = _server_cpu(tmp_path).notes
    assert "Go is not installed" in note


def test_a_load_that_cannot_be_built_is_a_note_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no module >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = _server_cpu(tmp_path).notes
    assert "go: no module" in note


def test_idle_connections_need_open_files_or_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    report = Report("rpc")
    certificate = Certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    asyncio.run(idle.measure_idle(report, certificate, quick=True))
    assert not report.figures
    assert "10,000 open files" in report.notes[0]
