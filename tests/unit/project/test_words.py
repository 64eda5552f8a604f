"""Code, pages and names of tests use the field's words: the worst of the old ones do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (
    "bench", "broker", "clients", "console", "daemon", "deploy", "docs", "nameserver",
    "news", "pipeline", "proto", "rpc", "store", "tests", "tools",
)  # fmt: skip
SUFFIXES = (".py", ".md", ".proto", ".html", ".js", ".toml", ".yaml", ".yml")
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
    r"\b[Ww]hat (?!in\b|if\b|to do\b)[a-z]": {"broker": 4, "proto": 2, "tests": 55},
    r"\b([Tt]old|[Tt]ells?|[Tt]elling)\b": {"clients": 1, "tests": 9},
    r"\bbehind\b": {"broker": 3, "tests": 57},
}  # fmt: skip
"""Clauses that begin with `what` as a noun, told, and behind for after: at most so many lines of a top
folder. Write the noun itself (the messages that, the result of); reports, returns, is called with; after. The
numbers only fall."""

CLEAN = (
    "broker/filters", "broker/query", "broker/security", "broker/track", "console", "nameserver", "pipeline",
    "store/backup", "store/check", "tests/pipeline", "tests/unit/backup", "tests/unit/console",
    "tests/unit/filters", "tests/unit/nameserver", "tests/unit/pipeline", "tests/unit/query",
    "tests/unit/scrub", "tests/unit/search", "tests/unit/security", "tests/unit/track",
)  # fmt: skip
"""Packages whose own words are the field's; a count of theirs is of a text that users see. Other tests are
counted together."""


class Phrase(NamedTuple):
    """A phrase of the second dialect. `stems`: plain texts, one of which each of its lines has (for speed);
    `at_most`: lines of a package with it. The numbers only fall."""

    stems: tuple[str, ...]
    instead: str
    at_most: dict[str, int]


DIALECT: Final[dict[str, Phrase]] = {
    r"(?i)(?<![a-z])usual": Phrase(
        ("sual", "SUAL"), "default, canonical, common; or nothing", {
            "tests": 7,
        },
    ),
    r"\bby (?:itself|themselves)\b": Phrase(
        ("itself", "themselves"), "alone, separately, without …", {
            "docs": 2, "tests/unit/console": 1,
        },
    ),
    r"\b[Ss]o (?:many|much)\b": Phrase(
        (" many", " much"), "the number or size itself: at most …, this many, up to", {
        },
    ),
    # also within identifiers; not the word alone as a text, a user's name for example
    (
        r"""(?:(?<=["]{3})|(?<![A-Za-z"']))"""
        r"""(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody|[Ww]hoever)(?![a-z"'])"""
    ): Phrase(
        ("body", "hoever"), "the caller, a client, no reader: the role", {
            "docs": 7, "tests": 96, "tests/pipeline": 1, "tests/unit/console": 2, "tests/unit/nameserver": 1,
            "tests/unit/pipeline": 1, "tests/unit/track": 2,
        },
    ),
    r"\b[Ss]o (?:long|often)\b(?! as\b|,? that\b)": Phrase(
        ("o long", "o often"), "the interval, the margin, the maximum wait; how many times", {
            "docs": 3,
        },
    ),
    r"\b(?:[Oo]f|[Ff]or|[Bb]y|[Tt]o|[Tt]hen|[Ff]rom) who\b": Phrase(
        (" who",), "the caller, the waiting call: the role", {
            "tests": 3,
        },
    ),
    (
        r"(?i)\b(?:the|an?|its|their|each|'s) begin\b(?![-_(\w])"
        r"|\bbegin (?:and|or) (?:the )?end\b(?! at)"
    ): Phrase(
        ("egin",), "start, beginning, earliest offset, prefix", {
            "broker/server": 1,
        },
    ),
    r"\b(?:an?|the|each|every|one|another|its|first|last|next|long|cheap) looks?\b(?!-)": Phrase(
        ("look",), "scan, check, read, poll", {
        },
    ),
    (
        r"\b(?:an?|the|each|every|one|another|its|own|per|first|last|next|same|this|that) turns?"
        r"\b(?! (?:into|out|off|on)\b)|\bin turns\b"
    ): Phrase(
        ("turn",), "iteration of the event loop, step, round", {
            "docs": 6, "tests": 3,
        },
    ),
    (
        r"\b(?:the|each|every|another|its|own|slow|fast|quick|long|short|all the|out of the)"
        r" ways?\b(?! (?:to|of)\b)|\bways\b"
    ): Phrase(
        ("way",), "path, mode, direction, rule", {
        },
    ),
    (
        r"\bwhat is left\b"
        r"|\b(?:be|is|are|was|were) left\b(?! (?:out|over|in|to|by)\b)|(?<!bisect)_left\b"
    ): Phrase(
        ("left",), "remaining, budget, rest", {
            "broker/server": 2, "clients": 1, "proto": 1, "tests": 6,
        },
    ),
    r"\b(?:is|are|was|were) (?:not )?taken\b(?! from\b)|\b\w*[Tt]akers?\b|\b_?Taken\b": Phrase(
        ("aken", "aker"), "accepted, assigned, charged, in use", {
            "tests": 3,
        },
    ),
    r"\bof (?:its|their|our|his|her) own\b": Phrase(
        (" own",), "separate, dedicated; its X", {
            "docs": 4, "tests": 4,
        },
    ),
    (
        r"\b(?:wait\w*|stand\w*|next|first|is|are|calls|place) in (?:the )?line\b"
        r"|\blines? of (?:waiting|calls|callers)\b"
    ): Phrase(
        (" line",), "queue of waiting calls", {
        },
    ),
    r"\bclass _?(?:Taken|Turn|Home|Line|Found|Place|Waiting|OpenTransaction)\b": Phrase(
        ("class ",), "the field's noun, once in the repository", {
            "tests": 2,
        },
    ),
    (
        r'\b[Aa]s (?:(?:of|by|for|in|with) )?`?[\w.]+\(\)|"""(?:As|Each as) [`\w.]*[.`_]\w+'
        r'|"""See `?[A-Z]\w|"""See \w+\.\w'
        r"|\b[Rr]aises(?: \w+)? as [`A-Za-z]|\b(?:[Ee]rrors|[Aa]rguments)(?: and errors)?,? as (?:of )?`"
        r"|Error,? as of\b|: as of |[Ee]rrors: as |(?:[;:] |\()see (?:[A-Z]\w+[ .:)]|_)"
    ): Phrase(
        ("s `", "()", '"""As ', "s as ", " as of ", ": as ", "see ", '"""See '),
        "what goes in, what comes out, the errors",
        {},
    ),
    r'(?:"""|[.:] |# )(?:Those|That of|All of them|Of those)\b': Phrase(
        ("Those", "That of", "All of", "Of those"), "the noun: units, brokers, waiting polls", {
            "tests": 2,
        },
    ),
}  # fmt: skip

TEST_NAMES: Final[dict[str, int]] = {
    "what": 417,
    "who": 49,
    "nobody|somebody|anybody|everybody|whoever": 97,
}
"""Words of names of tests, and at most how many names have one of them: a name says the symptom, with the
noun or the role. The numbers only fall."""

EXCEPTIONS = {
    # faults under the names of their time
    "docs/reports/track-record.md", "tests/durability/old_faults.py", "tests/durability/client_faults.py",
    "tests/durability/transport_faults.py",
    "tests/unit/project/test_words.py",
}  # fmt: skip


def pages() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in SUFFIXES and name not in EXCEPTIONS and not any(p in name for p in BUILT):
                yield path
    for names in ("*.md", "*.toml", "*.yml", "Makefile"):
        yield from sorted(ROOT.glob(names))


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


@cache
def names_of_tests() -> list[str]:
    """The names of all test functions."""
    return [
        found
        for name, text in texts()
        if name.startswith("tests/")
        for found in re.findall(r"def (test_\w+)\(", text)
    ]


def package_of(name: str) -> str:
    """The package of a page: broker/query, store/log, clients; for a page at the top `pages`."""
    name = name.replace("/trovemq_broker/", "/").replace("/trovemq_store/", "/")
    for package in CLEAN:
        if name.startswith(f"{package}/"):
            return package
    top, *rest = name.split("/")
    if not rest:
        return "pages"
    return f"{top}/{rest[0]}" if top in ("broker", "store") and len(rest) > 1 else top


def lines_at(text: str, stems: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Place and text of the lines that have one of the stems, once for each of them."""
    for stem in stems:
        at = text.find(stem)
        while at >= 0:
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            begin = text.rfind("\n", 0, at) + 1
            yield begin, text[begin:end]
            at = text.find(stem, end)


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


@pytest.mark.parametrize("words", TEST_NAMES)
def test_names_of_tests_with_old_words_only_become_fewer(words: str) -> None:
    found = [name for name in names_of_tests() if re.search(rf"_(?:{words})s?(?:_|$)", name)]
    assert len(found) <= TEST_NAMES[words], f"at most {TEST_NAMES[words]} names have {words}: write the noun"


@pytest.mark.parametrize("pattern", DIALECT)
def test_the_second_dialect_only_shrinks(pattern: str) -> None:
    phrase, matches = DIALECT[pattern], re.compile(pattern).search
    found: dict[str, list[str]] = {}
    for name, text in texts():
        lines = {begin: line.strip() for begin, line in lines_at(text, phrase.stems) if matches(line)}
        found.setdefault(package_of(name), []).extend(f"{name}: {line}" for line in lines.values())
    more = {package: lines for package, lines in found.items() if len(lines) > phrase.at_most.get(package, 0)}
    assert more == {}, f"more than {phrase.at_most}: write {phrase.instead}"
