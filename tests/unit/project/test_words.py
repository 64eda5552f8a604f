"""Code, pages and names of tests use the field's words: the worst of the old ones do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (
    "bench", "broker", "clients", "console", "daemon", "deploy", "docs", "nameserver",
    "pipeline", "proto", "rpc", "store", "tests",
)  # fmt: skip
BUILT = ("_pb2", "/build/", "node_modules", "egg-info")

INSTEAD = {
    r"\banew\b": "again, or rebuilt",
    r"\bmade anew\b": "rebuilt",
    r"\btold apart\b": "distinguished",
    r"\b(puts? (it|them) aside|put[ _]aside|trees_aside)\b": "quarantined",
    r"\bfor who (may|can|must) not\b": "non-blocking variant",
    r"(?<!here )\bis no (HOST|NAME|number|list|object|JSON|path|store|record|archive)\b": "is not a …",
    r"\bhand(s|ed|ing)?[ _]back\b": "export to RocketMQ, return",
    r"(?<!`)\b(gives?|given|gave)[ _-]back\b": "return",
    r"(?<!`)\b(passe[sd][ _-]over|pass_over)\b": "skip",
    r"\b([Gg]o(es|ing)?|went|gone) on\b(?! (disk|top|loopback|one|each|every|for ever))": "continue",
    r"\bset aside\b": "quarantined, kept out",
    r"(?i)\b(owed|rooms?)\b": "outstanding, unacknowledged; space, capacity; package",
    r"(?i)\bfarewells?\b": "termination, unregisters, GOAWAY",
    r"\b(comes?|came|coming) again\b": "is delivered again, is repeated",
    r"\bwhat (becomes|became) of\b": "the result, the outcome, the track of a message",
    r"\b(who|what|nobody|somebody) (is|are|was|were) (to be )?told\b": "is called with, gets, is reported",
    r"\b(ConsumerModel|OrderlyTaker|PriorityTaker|StoreRoom|RoomWork|LateMessages)\b": "the new names",
    r"\b(carry_before|owed_before|lowest_owed|go_on_at|tend_deliveries|pair_table)\b": "the new names",
}
"""Each pattern, and the words to write instead."""

LEFT_AT_MOST = {
    r"\b[Ww]hat (?!in\b|if\b|to do\b)[a-z]": {
        "broker": 8, "clients": 6, "daemon": 1, "docs": 7, "pages": 8,
        "proto": 4, "rpc": 4, "store": 4, "tests": 56,
    },
    r"\b([Tt]old|[Tt]ells?|[Tt]elling)\b": {"clients": 1, "tests": 44},
    r"\bbehind\b": {
        "broker": 3, "clients": 2, "console": 1, "docs": 2, "store": 2,
        "tests": 60,
    },
}  # fmt: skip
"""Clauses that begin with `what` as a noun, told, and behind for after: at most so many lines of a top
folder. Write the noun itself (the messages that, the result of); reports, returns, is called with; after. The
numbers only fall."""

EXCEPTIONS = {
    # faults under the names of their time
    "docs/reports/track-record.md", "tests/durability/old_faults.py", "tests/durability/client_faults.py",
    "tests/unit/project/test_words.py",
}  # fmt: skip


def pages() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".md") and name not in EXCEPTIONS and not any(p in name for p in BUILT):
                yield path
    yield from sorted(ROOT.glob("*.md"))


@cache
def texts() -> list[tuple[str, str]]:
    """Name and text of each page."""
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in pages()]


def loose(pattern: str) -> re.Pattern[str]:
    """The pattern without a word's begin, which finds more and searches up to thirty times faster."""
    return re.compile(re.sub(r"^((?:\(\?i\))?)(?:\(\?<!.*?\))?\\b", r"\1", pattern))


def lines_with(pattern: str) -> Iterator[tuple[str, int, str]]:
    """Name, number and text of each line in which it is found; whole pages are searched first."""
    first = loose(pattern)
    for name, text in texts():
        if first.search(text):
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(pattern, line):
                    yield name, number, line.strip()


@pytest.mark.parametrize("pattern", INSTEAD)
def test_a_word_of_the_old_dialect_does_not_come_back(pattern: str) -> None:
    found = [f"{name}:{number}: {line}" for name, number, line in lines_with(pattern)]
    assert found == [], f"write: {INSTEAD[pattern]}"


@pytest.mark.parametrize("pattern", LEFT_AT_MOST)
def test_the_rest_of_the_old_dialect_only_shrinks(pattern: str) -> None:
    found: dict[str, list[str]] = {}
    for name, number, line in lines_with(pattern):
        folder = name.split("/")[0] if "/" in name else "pages"
        found.setdefault(folder, []).append(f"{name}:{number}: {line}")
    limits = LEFT_AT_MOST[pattern]
    more = {folder: lines for folder, lines in found.items() if len(lines) > limits.get(folder, 0)}
    assert more == {}, f"more than {limits}: write the noun, or reports, returns, is called with"
