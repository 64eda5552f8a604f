"""The text of /metrics, made in parts, so that a registry with many series does not block the event loop.

A collector may yield a family in several consecutive parts with one name; the text has HELP and TYPE once.
Each part is one step of work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from trovemq_daemon.sample_tables import SampleTable, escaped, number_text

_PLAIN_TYPES: Final = frozenset({"counter", "gauge", "histogram"})
_MOVED: Final = ("_created", "_gsum", "_gcount")
"""Samples with these name suffixes are separate families in the text."""
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
        yield _text(family, with_head=family.name != last)
        last = family.name


def _text(family: Metric, *, with_head: bool) -> bytes:
    """The text of prometheus_client's generate_latest, many times faster: it examines no label."""
    if isinstance(family, SampleTable):
        lines = family.lines()
    elif family.type not in _PLAIN_TYPES or any(map(_is_special, family.samples)):
        return generate_latest(_One(family))  # comes in one part
    else:
        lines = "".join(map(_line, family.samples))
    head = _head(family) if with_head else ""
    return (head + lines).encode("utf-8")


def _is_special(sample: Sample) -> bool:
    return sample.timestamp is not None or sample.name.endswith(_MOVED)


def _line(sample: Sample) -> str:
    labels = ",".join([f'{name}="{escaped(value)}"' for name, value in sorted(sample.labels.items())])
    braces = f"{{{labels}}}" if labels else ""
    return f"{sample.name}{braces} {number_text(sample.value)}\n"


def _head(family: Metric) -> str:
    """The lines of HELP and TYPE."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    what = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {what}\n# TYPE {name} {family.type}\n"


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
