"""The rows of `trovemq cluster local`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from trovemq.cli.clusters import _Notes, _Printing
from trovemq.cli.local.members import Member, Plan
from trovemq.cli.options import Format, SharedOptions
from trovemq.cli.output import Output
from trovemq.cli.session import Session
from trovemq.cli.unwaiting import REST_MAX, UnwaitingWriter

NAMES = Member("nameserver", "nameserver", None, 1, 2)
BROKER = Member("broker", "broker-1", "broker-1", 3, 4)
ETCD = Member("etcd", "etcd", None, 5, 6, 7)


@contextmanager
def printing(stdout: IO[bytes], format_: Format, *more: Member) -> Iterator[_Printing]:
    output = Output(format_, stdout=stdout, stderr=io.StringIO(), terminal=False)
    session = Session(options=SharedOptions(), timeout_s=1.0, output=output)
    with closing(output):
        notes = _Notes(output.objects, UnwaitingWriter(sys.stderr.buffer))
        yield _Printing(session, Plan(Path("/c"), [*more, NAMES, BROKER]), notes)


def test_the_table_had_two_rows_of_a_broker_that_was_started_twice() -> None:
    stdout = io.BytesIO()
    with printing(stdout, Format.TABLE) as shown:
        for member, pid in ((NAMES, 100), (BROKER, 101), (BROKER, 102)):
            shown.started(member, pid)
        shown.all_ready()
    rows = [line.split() for line in stdout.getvalue().decode().splitlines()[1:]]
    assert [(row[1], row[2]) for row in rows] == [("nameserver", "100"), ("broker-1", "102")]


@pytest.mark.parametrize(("more", "is_trial"), [((), False), ((ETCD,), True)])
def test_a_single_etcd_is_called_a_trial(
    more: tuple[Member, ...], is_trial: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with printing(io.BytesIO(), Format.TABLE, *more) as shown:
        shown.all_ready()
    assert ("A trial: this etcd has one member" in capsys.readouterr().err) is is_trial


def test_a_broker_that_died_stopped_all_where_the_reader_had_gone(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as stdout, printing(stdout, Format.JSON) as shown:
        shown.started(BROKER, 100)
        shown.all_ready()
        os.close(reader)
        shown.serves_again(BROKER, 101)
        shown.serves_again(BROKER, 102)
    assert "its new row could not be written" in capsys.readouterr().err


def test_ctrl_c_while_a_row_was_written_left_the_daemons_alone() -> None:
    handled: list[int] = []

    class Terminal(io.BytesIO):
        def flush(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, _: handled.append(number))
    try:
        with printing(Terminal(), Format.JSON) as shown:
            shown.started(BROKER, 100)
            shown.all_ready()
            shown.serves_again(BROKER, 101)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [signal.SIGINT] * 3


def test_a_reader_that_goes_away_during_the_start_ends_it() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as stdout, printing(stdout, Format.JSON) as shown:
        shown.started(BROKER, 100)
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            shown.serves_again(BROKER, 101)
        shown._session.output.discard()


@pytest.mark.asyncio
async def test_a_reader_that_did_not_read_stopped_the_whole_command() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as stdout, printing(stdout, Format.JSON) as shown:
        for pid in range(2_000):  # more than a pipe holds
            shown.started(BROKER, pid)
        os.set_blocking(reader, False)
        found = b""
        while found.count(b"\n") < 2_000:
            with suppress(BlockingIOError):
                found += os.read(reader, 1 << 16)
            await asyncio.sleep(0)
    os.close(reader)
    assert [json.loads(line)["pid"] for line in found.splitlines()] == [*range(2_000)]


@pytest.mark.asyncio
async def test_rows_that_nobody_reads_are_dropped_at_a_limit() -> None:
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb"),
        os.fdopen(writer, "wb") as stdout,
        closing(UnwaitingWriter(stdout)) as out,
    ):
        out.write(bytes(REST_MAX))
        out.write(bytes(1 << 10))
        with pytest.raises(BlockingIOError, match="nothing reads it"):
            out.write(bytes(REST_MAX))
