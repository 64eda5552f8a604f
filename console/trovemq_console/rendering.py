"""Templates, and the format of values on a page. The templates escape every value, without exception."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from trovemq_console.bodies import preview, visible

SEARCH_TEMPLATES: Final = ("base.html", "macros.html", "search.html", "message.html")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_PERIODS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


@cache
def make_environment() -> Environment:
    """The templates, with the filters below; compiled once."""
    environment = Environment(
        loader=PackageLoader("trovemq_console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=size_text,
        number=number_text,
        rate=rate_text,
        moment=moment_text,
        ago=ago_text,
        duration=duration_text,
        preview=preview,
        visible=visible,
    )
    environment.globals.update(link=link)
    return environment


async def load_templates(environment: Environment) -> None:
    """Compiles the templates of the search ahead, one per iteration of the event loop."""
    for name in SEARCH_TEMPLATES:
        environment.get_template(name)
        await asyncio.sleep(0)


def link(path: str, **parameters: Any) -> str:
    """A path with its parameters, without those that are None or empty."""
    given = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
    # A lone surrogate cannot be encoded; a request for such a name is not possible either.
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def number_text(value: float | None) -> str:
    """`12,345`; a dash for none."""
    return "—" if value is None else f"{value:,.0f}"


def size_text(size: float | None) -> str:
    """`512 B`, `1.5 MiB`."""
    if size is None:
        return "—"
    value = float(size)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes all")


def rate_text(rate: float | None) -> str:
    """`1,234/s`, `0.4/s`; a dash if it is not known yet."""
    if rate is None:
        return "—"
    return f"{rate:.1f}/s" if 0 < rate < 10 else f"{rate:,.0f}/s"


def moment_text(milliseconds: int) -> str:
    """`2025-01-01 00:00:00.000` in UTC; a dash for none."""
    if milliseconds <= 0:
        return "—"
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}"


def ago_text(milliseconds: int) -> str:
    """`3 min ago`, `in 2 h`; a dash for none."""
    if milliseconds <= 0:
        return "—"
    passed = time.time_ns() // 1_000_000 - milliseconds
    return f"in {duration_text(-passed)}" if passed < 0 else f"{duration_text(passed)} ago"


def duration_text(milliseconds: float) -> str:
    """`2 h 5 min`, `12 s`, `350 ms`: two units at most."""
    rest = int(milliseconds)
    if rest < 1_000:
        return f"{rest} ms"
    parts = []
    for length, unit in _PERIODS:
        if rest >= length:
            parts.append(f"{rest // length} {unit}")
            rest %= length
        elif parts:
            break
    return " ".join(parts[:2])
