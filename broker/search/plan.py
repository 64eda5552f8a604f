"""How a search goes through a part of the log that the trees cover: which of its conditions are walked.

Of conditions that must all be met, the rarest is walked, and beside it those that cost less to walk than the
candidates they spare. One that would be met by too many, or whose property was not indexed yet, is not
walked: what the others name is looked at in the log anyway. Where none is left, every record of the topic is
looked at, by `location`.

How many entries a walk touches is estimated first: what is counted ends at a bound, then it is "at least".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from broker.search.conditions import AllOf, AnyOf, Condition, Has
from broker.search.walks import (
    Range,
    Ranks,
    Walk,
    all_walk,
    any_walk,
    distinct_terms,
    listed_walk,
    location_walk,
    merged_walk,
    offsets_of,
    term_walk,
)
from broker.storage.trees import key_after
from broker.trees.layout import (
    KEY,
    OFFSET,
    PROPERTY,
    TERM,
    TERM_END,
    UNIQUE_KEY,
    TopicEntry,
    prefix_of,
    term_of,
    term_prefix,
)

COUNTED_MAX: Final = 256
"""Entries of one condition that are counted before the search begins."""
TERMS_MAX: Final = 512
LISTED_MAX: Final = 16_384
"""Entries that one page may read before it walks, to bring them into the order of the log."""
_LISTED_COST: Final = 4
"""Testing a record by columns costs about as much as listing so many entries."""
_PAGE: Final = 32
_LETTERS: Final = 8
_LOOK_COST: Final = 8
"""Looking at a record costs about as much as so many entries."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`text` names what is walked; `entries` of it, `at_least` so many; `records` it names, about. `ranks`
    are known where all of its entries were counted."""

    text: str
    entries: int
    at_least: bool
    records: float
    cost: float
    walk: Callable[[], Walk]
    ranks: Ranks | None = None


class Planner:
    """Of one part of the log and one topic."""

    def __init__(self, span: Range, topic: TopicEntry, indexed: Callable[[str], bool]) -> None:
        """indexed: whether every record of the part has terms of that property."""
        self._span = span
        self._topic = topic
        self._indexed = indexed
        self._listed_left = LISTED_MAX

    def plan(self, where: Condition) -> Plan:
        return self._of(where) or self._whole_topic()

    def _whole_topic(self) -> Plan:
        count = self._topic.message_count
        return Plan(
            f"location: every message of the topic, of which {count} are indexed",
            count,
            False,
            count,
            count,
            lambda: location_walk(self._span, self._topic.number),
        )

    def _of(self, condition: Condition) -> Plan | None:
        """None: it names no records by itself."""
        match condition:
            case Has():
                return self._has(condition)
            case AllOf(parts):
                plans = sorted(filter(None, map(self._of, parts)), key=lambda plan: plan.records)
                return _all_of(plans) if plans else None
            case AnyOf(parts):
                found = [self._of(part) for part in parts]
                plans = [plan for plan in found if plan is not None]
                return _any_of(plans) if len(plans) == len(found) else None

    def _has(self, condition: Has) -> Plan | None:
        if condition.kind == PROPERTY and not self._indexed(condition.name):
            return None
        head = term_prefix(self._topic.number, condition.kind, condition.name)
        if condition.is_prefix:
            return self._beginning(condition, head + prefix_of(condition.value))
        return self._exact(condition, head + term_of(condition.value) + TERM_END)

    def _exact(self, condition: Has, term: bytes) -> Plan:
        span = self._span
        counted = list(islice(span.entries(TERM, term), COUNTED_MAX))
        offsets = offsets_of(counted)
        if len(counted) < COUNTED_MAX:
            return _known(f"term: {condition}", len(counted), span.ranks(offsets))
        share = max(1.0, (span.high - span.low) / max(1, int(offsets.max() - offsets.min())))
        return Plan(
            f"term: {condition}",
            len(counted),
            True,
            len(offsets) * share,
            len(counted) * share,
            lambda: term_walk(span, term),
        )

    def _beginning(self, condition: Has, begin: bytes) -> Plan | None:
        span, end = self._span, key_after(begin)
        blocks = condition.kind not in (KEY, UNIQUE_KEY)
        counted = list(islice(span.reader.items(TERM, begin, end), COUNTED_MAX))
        span.touched += len(counted)
        if len(counted) < COUNTED_MAX:
            return _known(f"term: {condition}", len(counted), span.ranks(offsets_of(counted)))
        about = _about(span, counted, begin)
        most = max(0, self._listed_left)
        if not blocks and about <= most and about <= _LISTED_COST * self._walked(about):
            listed = self._listed(condition, begin, most)
            if listed is not None:
                return listed
        terms = None
        values = len({key[: -OFFSET.size] for key, _ in counted})
        spread = values * about / COUNTED_MAX
        if values == 1 or (spread <= TERMS_MAX and (blocks or spread <= self._walked(about))):
            terms = distinct_terms(span, begin, min(TERMS_MAX, max(0, self._listed_left)))
            self._listed_left -= TERMS_MAX if terms is None else len(terms)
        if terms is not None:
            text, count = f"term: {condition}, {len(terms)} values", 4 * max(len(terms), COUNTED_MAX)
            records = float(count * (64 if blocks else 1))
            return Plan(text, COUNTED_MAX, True, records, count, lambda: merged_walk(span, terms))
        return self._listed(condition, begin, most) if blocks and about <= most else None

    def _walked(self, entries: float) -> float:
        """About so many records of the topic are tested for a page, if so many of all answer."""
        return min(self._topic.message_count, _PAGE * self._topic.message_count / entries)

    def _listed(self, condition: Has, begin: bytes, most: int) -> Plan | None:
        """None: there are more entries, about which no more is to be read."""
        span = self._span
        listed = list(islice(span.reader.items(TERM, begin, key_after(begin)), most + 1))
        self._listed_left -= len(listed)
        span.touched += len(listed)
        if len(listed) > most:
            return None
        return _known(f"term: {condition}", len(listed), span.ranks(offsets_of(listed)))


def _about(span: Range, counted: list[tuple[bytes, bytes]], begin: bytes) -> float:
    """How many entries have keys that begin so, by how far the first ones got between the first term and the
    last, read as numbers whose digits are the bytes that occur; wrong where terms come in clusters."""
    end = key_after(begin)
    final = next(span.reader.items(TERM, begin, end, reverse=True), counted[-1])[0]
    span.touched += 1
    terms = [key[: -OFFSET.size - 1] for key, _ in counted]
    first, reached, last = terms[0], terms[-1], final[: -OFFSET.size - 1]
    cut = next(
        (i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(begin)
    )
    letters = sorted({0, *b"".join(term[cut : cut + _LETTERS] for term in (*terms, last))})
    digits = {letter: digit for digit, letter in enumerate(letters)}

    def place(term: bytes) -> int:
        place = 0
        for letter in term[cut : cut + _LETTERS].ljust(_LETTERS, b"\0"):
            place = place * len(letters) + digits[letter]
        return place

    passed = place(reached) - place(first)
    return len(counted) * (place(last) - place(first)) / passed if passed > 0 else float(1 << 40)


def _known(text: str, entries: int, ranks: Ranks) -> Plan:
    return Plan(text, entries, False, len(ranks), 0, lambda: listed_walk(ranks), ranks)


def _all_of(plans: list[Plan]) -> Plan:
    """The rarest, and those that spare more than they cost; of plans by rising number of records."""
    first = plans[0]
    chosen = [first, *(plan for plan in plans[1:] if plan.cost <= _LOOK_COST * first.records)]
    if len(chosen) == 1:
        return first
    return Plan(
        " and ".join(plan.text for plan in chosen),
        sum(plan.entries for plan in chosen),
        any(plan.at_least for plan in chosen),
        first.records,
        sum(plan.cost for plan in chosen),
        lambda: all_walk([plan.walk() for plan in chosen]),
    )


def _any_of(plans: list[Plan]) -> Plan:
    if len(plans) == 1:
        return plans[0]
    known = [plan.ranks for plan in plans if plan.ranks is not None]
    walks = [plan.walk for plan in plans if plan.ranks is None]
    ranks = np.unique(np.concatenate(known)) if known else None
    if ranks is not None:
        walks.append(lambda: listed_walk(ranks))
    return Plan(
        "(" + " or ".join(plan.text for plan in plans) + ")",
        sum(plan.entries for plan in plans),
        any(plan.at_least for plan in plans),
        float(sum(plan.records for plan in plans)),
        float(sum(plan.cost for plan in plans)),
        lambda: any_walk([walk() for walk in walks]),
        ranks if len(known) == len(plans) else None,
    )
