"""The text of /metrics, made in parts, so that a registry with many series does not block the event loop.

A collector may yield a family in several consecutive parts with one name; the text has HELP and TYPE once.
Each part is one step of work.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_PLAIN_TYPES: Final = frozenset({"counter", "gauge", "histogram"})
_MOVED: Final = ("_created", "_gsum", "_gcount")
"""Samples with these name suffixes are families of their own in the text."""
_ESCAPED: Final = re.compile(r'[\\\n"]')
TURN_S: Final = 0.005
"""After this time other work runs, when the present part has ended."""


class _One(Collector):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def text_parts(registry: CollectorRegistry) -> Iterator[bytes]:
    """The parts of the text that Prometheus reads."""
    last = ""
    for family in registry.collect():
        text = _text(family)
        yield _without_head(text) if family.name == last else text
        last = family.name


def _text(family: Metric) -> bytes:
    """As generate_latest(), which takes four times as long for many samples, because it examines each
    label."""
    samples = family.samples
    if family.type not in _PLAIN_TYPES or any(
        sample.timestamp is not None or sample.name.endswith(_MOVED) for sample in samples
    ):
        return generate_latest(_One(family))
    head = Metric(family.name, family.documentation, family.type)
    forms: dict[tuple[str, ...], tuple[list[str], str]] = {}
    lines = []
    for sample in samples:
        key = (sample.name, *sample.labels)
        if key not in forms:
            names = sorted(sample.labels)
            labels = ",".join([name + '="%s"' for name in names])
            forms[key] = names, f"{sample.name}{{{labels}}} %s\n" if names else f"{sample.name} %s\n"
        names, form = forms[key]
        values = [sample.labels[name] for name in names]
        if _ESCAPED.search("".join(values)):
            values = [_ESCAPED.sub(_escape, value) for value in values]
        number = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
        lines.append(form % (*values, number))
    return generate_latest(_One(head)) + "".join(lines).encode("utf-8")


def _escape(found: re.Match[str]) -> str:
    return {"\\": r"\\", "\n": r"\n", '"': r"\""}[found[0]]


def text_of(registry: CollectorRegistry) -> bytes:
    """The whole text in one step."""
    return b"".join(text_parts(registry))


async def text_in_turns(registry: CollectorRegistry) -> list[bytes]:
    """text_parts(), with turns for other work in between."""
    parts, ends = [], time.perf_counter() + TURN_S
    for part in text_parts(registry):
        parts.append(part)
        if time.perf_counter() >= ends:
            await asyncio.sleep(0)
            ends = time.perf_counter() + TURN_S
    return parts


def _without_head(text: bytes) -> bytes:
    """The text without the lines of HELP and TYPE; a sample never begins with a #."""
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
