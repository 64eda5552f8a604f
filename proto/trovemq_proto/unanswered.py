"""Why a call had no answer, in words for people. The words of transports differ, and are of their insides."""

from __future__ import annotations

import re
from typing import Final

_REASONS: Final = tuple(
    (reason, re.compile(pattern, re.I))
    for reason, pattern in (
        ("no route leads there", r"no route|network is unreachable|errno (113|101)\b"),
        ("no process listens there", r"refused|connect call failed|errno (111|61)\b"),
        (
            "its name has no address",
            r"not known|not found|has no address|no address assoc|resolv|name resolution|errno -\d",
        ),
        ("it took no connection in time", r"time to connect|timed out|timeout|deadline"),
    )
)
"""Reasons of a failure to connect, with the texts of transports and operating systems for each."""
_CONNECTING: Final = re.compile(r"failed to connect|resolving|name resolution|dns", re.I)
_NO_ANSWER: Final = ("UNAVAILABLE", "INTERNAL", "CANCELLED")
"""Our servers describe their own errors: without a description these are of the connection."""
_SIZE_MAX: Final = 512


def why_unanswered(status: str, details: str | None) -> str:
    """The reason why a call ended without an answer of its server. `status`: the name of its gRPC status,
    `details`: the transport's text."""
    text = (details or "").strip()[:_SIZE_MAX]
    if status == "DEADLINE_EXCEEDED":
        return "it did not answer in time"
    if status not in _NO_ANSWER:
        return f"{status}: {text}" if text else status
    if not _CONNECTING.search(text):
        return f"no answer: {text}" if text else "no answer"
    cause = text.rpartition("last error: ")[2]
    for reason, pattern in _REASONS:
        if pattern.search(cause):
            return f"it cannot be reached: {reason}"
    return f"it cannot be reached: {cause}"
