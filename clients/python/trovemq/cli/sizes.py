"""Parses sizes, in the form of the broker's settings."""

from __future__ import annotations

import re
from typing import Final

import typer

_SIZE: Final = re.compile(r"([0-9][0-9_]{0,30})\s*([A-Za-z]*)")
_FACTORS: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1_000,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 1_000_000,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 1_000_000_000,
    "gib": 1 << 30,
}


def parse_size(text: str | int) -> int:
    """Bytes of `65536`, `64KiB`, `100MiB` or `1GiB`. Raises typer.BadParameter (usage) for anything else."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or match[2].lower() not in _FACTORS:
        raise typer.BadParameter(f"{text!r} is not a size: a whole number, for example 65536 or 64KiB")
    return int(match[1].replace("_", "")) * _FACTORS[match[2].lower()]
