"""Sizes on the command line."""

from __future__ import annotations

import pytest
import typer

from trovemq.cli.sizes import parse_size
from trovemq.cli.store import RATE_MAX, RATE_MIN, parse_rate


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65_536),
        ("100MiB", 100 << 20),
        ("64 kib", 64 << 10),
        ("1g", 1 << 30),
        ("2MB", 2_000_000),
        ("1_000", 1_000),
        (7, 7),
    ],
)
def test_a_size_with_a_unit_was_refused(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5MiB", "1TiB", "1 2", "0x10", "\u0661"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a size"):
        parse_size(text)


def test_a_rate_is_within_its_bounds() -> None:
    assert [parse_rate(str(rate)) for rate in (RATE_MIN, RATE_MAX)] == [RATE_MIN, RATE_MAX]
    for rate in (RATE_MIN - 1, RATE_MAX + 1):
        with pytest.raises(typer.BadParameter, match="outside"):
            parse_rate(str(rate))
