"""The bar: at a terminal, after two seconds, and nowhere else."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from trovemq.cli import progress
from trovemq.cli.options import Format
from trovemq.cli.output import Output
from trovemq.cli.progress import Progress


class Stderr(io.StringIO):
    """Standard error, perhaps a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, format_: Format, how: Any) -> str:
    """Standard error after some steps, in each of which the bar may be drawn."""
    stderr = Stderr(terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SECONDS_BEFORE", 0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0)
    output = Output(format_, stdout=io.BytesIO(), stderr=stderr, terminal=terminal)

    async def run() -> None:
        bar = Progress(output)
        async with bar.shown():
            for step in range(1, 4):
                how(bar, step)
                for _ in range(5):
                    await asyncio.sleep(0)

    asyncio.run(run())
    output.close()
    return stderr.getvalue()


def count(bar: Progress, step: int) -> None:
    bar.at(step, 3, "sending")


def test_a_person_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, True, Format.TABLE, count)
    assert "sending" in text
    assert "3 of 3" in text
    assert "sending" in shown(monkeypatch, True, Format.BODY, count)


def test_bytes_are_shown_in_units_and_large_numbers_in_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(done: int, total: int | None, in_bytes: bool) -> str:
        return shown(
            monkeypatch,
            True,
            Format.TABLE,
            lambda bar, step: bar.at(done, total, "sending", in_bytes=in_bytes),
        )

    assert "48.0 MiB of 60.0 MiB" in at(48 << 20, 60 << 20, True)
    assert "1,200 of 300,000" in at(1_200, 300_000, False)
    assert "1,200" in at(1_200, None, False)


def test_a_verb_that_says_nothing_shows_that_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "working" in shown(monkeypatch, True, Format.TABLE, lambda bar, step: None)


@pytest.mark.parametrize(
    ("terminal", "format_"),
    [(False, Format.TABLE), (True, Format.JSON), (True, Format.YAML), (False, Format.JSON)],
)
def test_nothing_without_a_terminal_or_with_objects(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, format_: Format
) -> None:
    assert shown(monkeypatch, terminal, format_, count) == ""


def test_nothing_while_the_answer_is_printed_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, True, Format.TABLE, lambda bar, step: bar.off()) == ""


def test_nothing_before_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real(0 if seconds == 0 else 3600)

    monkeypatch.setattr("trovemq.cli.progress.asyncio.sleep", sleep)
    stderr = Stderr(True)
    output = Output(Format.TABLE, stdout=io.BytesIO(), stderr=stderr, terminal=True)

    async def run() -> None:
        async with Progress(output).shown():
            for _ in range(5):
                await real(0)

    asyncio.run(run())
    output.close()
    assert (waits, stderr.getvalue()) == ([2.0], "")
