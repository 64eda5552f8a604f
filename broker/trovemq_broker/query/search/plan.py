"""The plan of a search in a part of the log that the trees cover: which of its conditions are walked.

Of conditions that must all be met, the rarest is walked, and each further one that costs less than reading
the candidates that it excludes. A condition is not walked if too many records meet it or its property was not
indexed yet: the candidates of the others are read from the log anyway. If no condition is walked, every
record of the topic is examined, by `location`.

The number of entries of a walk is estimated first: counting ends at a bound, then the number is "at least".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from trovemq_broker.query.search.conditions import AllOf, AnyOf, Condition, Has
from trovemq_broker.query.search.walks import (
    Range,
    Ranks,
    Walk,
    all_walk,
    any_walk,
    in_order,
    listed_walk,
    location_walk,
    merged_walk,
    offsets_of,
    offsets_of_keys,
    term_walk,
    terms_beginning,
)
from trovemq_store.files.trees import key_after
from trovemq_store.index.trees.layout import (
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
"""The most entries of one condition that are counted before the search begins."""
TERMS_MAX: Final = 2_048
"""The most terms that are merged."""
LISTED_MAX: Final = 65_536
"""The most entries that one page may read and sort before it walks, in keys of unique ids; other entries cost
more, by _weight()."""
# No benchmark has a case for the following ratios.
_LISTED_COST: Final = 16
"""Testing a record by columns costs about as much as listing this many keys."""
_TERM_COST: Final = 8
"""Finding a term's first record costs about as much as listing this many keys."""
_MERGED_COST: Final = 4
"""A record of a merged walk costs about as much as listing this many keys."""
_FINAL: Final = 64
"""Entries that are read from the end, to estimate their number."""
_FAR: Final = 8
"""A gap of this many average distances means that records lie in clusters."""
_PAGE: Final = 32
_LETTERS: Final = 8
_READ_COST: Final = 8
"""Reading a record costs about as much as this many entries."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`text` names the walked terms; `entries`: their number, or at least that many (`at_least`); `records`:
    about how many records they name. `ranks`: set if all entries were counted."""

    text: str
    entries: int
    at_least: bool
    records: float
    cost: float
    walk: Callable[[], Walk]
    ranks: Ranks | None = None


class Planner:
    """Plans a search in one part of the log and one topic."""

    def __init__(self, span: Range, topic: TopicEntry, indexed: Callable[[str], bool]) -> None:
        """indexed: returns whether every record of the part has terms of that property."""
        self._span = span
        self._topic = topic
        self._indexed = indexed
        self._listed_budget = LISTED_MAX

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
        """The plan of a condition; None if it alone names no records."""
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
        if condition.has_spaces:
            word = condition.by_word()
            return None if word is None else self._has(word)
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
        counted = list(islice(span.reader.items(TERM, begin, end), COUNTED_MAX))
        span.touched += len(counted)
        if len(counted) < COUNTED_MAX:
            return _known(f"term: {condition}", len(counted), span.ranks(offsets_of(counted)))
        final = list(islice(span.reader.items(TERM, begin, end, reverse=True), _FINAL))
        span.touched += len(final)
        entries = _about(counted, final[0][0])
        records = entries * len(offsets_of(counted)) / len(counted)
        walked = self._walked(records, offsets_of(counted + final))
        values = len({key[: -OFFSET.size] for key, _ in counted})
        terms = values * entries / len(counted)
        if values == 1 or _TERM_COST * terms <= min(_TERM_COST * TERMS_MAX, _LISTED_COST * walked, entries):
            merged = self._merged(condition, begin, records)
            if merged is not None:
                return merged
        weight = _weight(condition)
        if weight * records <= min(self._listed_budget, _LISTED_COST * walked):
            return self._listed(condition, begin)
        return None

    def _walked(self, records: float, places: Ranks) -> float:
        """An estimate of the records of the topic that are tested for a page, if this many of all answer,
        some of them at these places: they may all lie in one cluster, far from the start of the walk."""
        span, topic = self._span, self._topic
        size = span.high - span.low
        most = topic.message_count * min(1.0, size / max(1, topic.byte_count))
        ranks = span.ranks(places)
        begin = -span.high if span.newest_first else span.low
        ahead = int(ranks[0]) - begin if len(ranks) else size
        apart = _FAR * size / len(places)
        return min(most, max(_PAGE * topic.message_count / records, most * (ahead - apart) / size))

    def _merged(self, condition: Has, begin: bytes, records: float) -> Plan | None:
        """The merged records of all terms; None if there are too many terms."""
        span = self._span
        terms_max = min(TERMS_MAX, max(0, self._listed_budget) // _TERM_COST)
        terms = terms_beginning(span, begin, terms_max)
        self._listed_budget -= _TERM_COST * (terms_max if terms is None else len(terms.terms))
        if terms is None:
            return None
        text, entries = f"term: {condition}, {len(terms.terms)} values", max(COUNTED_MAX, len(terms.terms))
        return Plan(text, entries, True, records, _MERGED_COST * records, lambda: merged_walk(span, terms))

    def _listed(self, condition: Has, begin: bytes) -> Plan | None:
        """The listed entries; None if there are too many to list."""
        span, end, weight = self._span, key_after(begin), _weight(condition)
        assert end is not None, "a prefix begins with a topic's number and a kind"
        assert self._listed_budget > 0, "entries are listed only within their budget"
        most = self._listed_budget // weight
        if condition.kind == UNIQUE_KEY:
            offsets = offsets_of_keys(span.reader.keys(TERM, begin, end, most + 1))
            count = len(offsets)
        else:
            listed, count = [], 0
            for entry in span.reader.items(TERM, begin, end):
                listed.append(entry)
                count += 1 + len(entry[1]) // OFFSET.size
                if count > most:
                    break
            offsets = offsets_of(listed)
        self._listed_budget -= weight * count
        span.touched += count
        return _known(f"term: {condition}", count, span.ranks(offsets)) if count <= most else None


def _weight(condition: Has) -> int:
    """The cost of one entry. An entry of a unique id has no value, so only its key is read."""
    return 1 if condition.kind == UNIQUE_KEY else 4


def _about(counted: list[tuple[bytes, bytes]], final: bytes) -> float:
    """Estimates the number of entries up to the key `final` from the part of the range between the first term
    and the last that the counted ones cover. Terms are read as numbers whose digits are the bytes that occur.
    Wrong if terms lie in clusters."""
    terms = [key[: -OFFSET.size - 1] for key, _ in counted]
    first, reached, last = terms[0], terms[-1], final[: -OFFSET.size - 1]
    pairs = enumerate(zip(first, last, strict=False))
    cut = next((i for i, (one, other) in pairs if one != other), len(first))
    size = min(_LETTERS, max(map(len, (*terms, last))) - cut)
    texts = {term: term[cut : cut + size].ljust(size, b"\0") for term in (*terms, last)}
    letters = sorted({*b"".join(texts.values())})
    digits = {letter: digit for digit, letter in enumerate(letters)}

    def place(term: bytes) -> int:
        place = 0
        for letter in texts[term]:
            place = place * len(letters) + digits[letter]
        return place

    passed = place(reached) - place(first)
    if passed <= 0:
        return float(1 << 40)
    return 1 + (len(counted) - 1) * (place(last) - place(first)) / passed


def _known(text: str, entries: int, ranks: Ranks) -> Plan:
    return Plan(text, entries, False, len(ranks), 0, lambda: listed_walk(ranks), ranks)


def _all_of(plans: list[Plan]) -> Plan:
    """The rarest plan, and those that save more than they cost. `plans` are sorted by their number of
    records."""
    first = plans[0]
    chosen = [first, *(plan for plan in plans[1:] if plan.cost <= _READ_COST * first.records)]
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
    ranks = in_order(np.concatenate(known)) if known else None
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
