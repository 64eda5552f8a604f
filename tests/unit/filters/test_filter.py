"""Filters by tag, their kinds, and the memory of parsed ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.filters.filter import EXPRESSION_LENGTH_MAX, TAKE_ALL, FilterCache, parse_filter
from trovemq_proto.errors import TroveError
from trovemq_proto.records import java_hash


@pytest.mark.parametrize("expression", ["*", "", " * ", "  "])
def test_a_star_or_an_empty_expression_matches_all(expression: str) -> None:
    made = parse_filter("tag", expression)
    assert made.takes_all
    assert made.tag_hashes is None
    assert made.matches({})
    assert made.matches({"TAGS": "a"})
    assert (made.kind, made.expression) == (TAKE_ALL.kind, TAKE_ALL.expression) == ("tag", "*")


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", {"a"}), (" a ", {"a"}), ("a || b", {"a", "b"}), ("a||b", {"a", "b"}), ("a || a", {"a"}),
        ("a ||", {"a"}), ("|| a || || b ||", {"a", "b"}), ("a b", {"a b"}), ("a | b", {"a | b"}),
        ("* || a", {"*", "a"}), ("größe", {"größe"}), ("TagA || taga", {"TagA", "taga"}),
    ],
)  # fmt: skip
def test_tags_are_matched_exactly(expression: str, tags: set[str]) -> None:
    made = parse_filter("tag", expression)
    assert (made.kind, made.takes_all) == ("tag", False)
    assert made.tag_hashes == frozenset(java_hash(tag) for tag in tags)
    for tag in ("a", "b", "a b", "a | b", "*", "größe", "TagA", "taga", "", "ab", "a || b"):
        assert made.matches({"TAGS": tag, "a": "x"}) is (tag in tags)
    assert not made.matches({})


def test_tags_of_one_hash_are_still_distinguished() -> None:
    assert java_hash("Aa") == java_hash("BB")
    made = parse_filter("tag", "Aa")
    assert not made.matches({"TAGS": "BB"})


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_separators_alone_are_no_filter(expression: str) -> None:
    with pytest.raises(TroveError, match=r"FILTER_ILLEGAL.*at character 1"):
        parse_filter("tag", expression)


@given(st.lists(st.text(st.characters(exclude_characters="|"), min_size=1).map(str.strip), min_size=1))
def test_the_tags_of_an_expression_and_no_others(tags: list[str]) -> None:
    wanted = {tag for tag in tags if tag} - {"*"}
    if not wanted:
        return
    made = parse_filter("tag", " || ".join(wanted))
    assert all(made.matches({"TAGS": tag}) for tag in wanted)
    assert not any(made.matches({"TAGS": tag + "x"}) for tag in wanted if tag + "x" not in wanted)


def test_an_sql_filter_cannot_decide_by_the_tags_code() -> None:
    made = parse_filter("sql", "TAGS = 'a'")
    assert (made.kind, made.takes_all, made.tag_hashes) == ("sql", False, None)
    assert made.expression == "TAGS = 'a'"


@pytest.mark.parametrize(("kind", "known"), [("", "tag"), ("TAG", "tag"), ("SQL92", "sql"), ("Sql", "sql")])
def test_rocketmqs_names_of_the_kinds(kind: str, known: str) -> None:
    assert parse_filter(kind, "a").kind == known


def test_other_kinds_are_refused() -> None:
    with pytest.raises(TroveError, match="FILTER_ILLEGAL"):
        parse_filter("xpath" * 1_000, "a")


def test_a_long_tag_expression_is_refused() -> None:
    parse_filter("tag", "a" * EXPRESSION_LENGTH_MAX)
    with pytest.raises(TroveError, match=r"FILTER_ILLEGAL.*more than 8192"):
        parse_filter("tag", "a" * (EXPRESSION_LENGTH_MAX + 1))


def test_the_same_expression_is_parsed_once() -> None:
    cache = FilterCache()
    assert cache.parse("sql", "a = 1") is cache.parse("SQL92", "a = 1")
    assert cache.parse("tag", "a") is not cache.parse("sql", "a")
    assert len(cache) == 3


def test_the_least_recently_used_filters_are_forgotten() -> None:
    cache = FilterCache(filters_max=2)
    first, _second = cache.parse("tag", "1"), cache.parse("tag", "2")
    assert cache.parse("tag", "1") is first
    cache.parse("tag", "3")
    assert len(cache) == 2
    assert cache.parse("tag", "1") is first, "2 was forgotten"


def test_long_expressions_are_forgotten_sooner() -> None:
    cache = FilterCache(expressions_length_max=100)
    for index in range(10):
        cache.parse("tag", str(index) * 30)
        assert len(cache) <= 3
    cache.parse("tag", "x" * 101)
    assert len(cache) == 0, "one that is longer than all of the space is not kept"


def test_faults_are_not_remembered() -> None:
    cache = FilterCache()
    for _ in range(2):
        with pytest.raises(TroveError, match="FILTER_ILLEGAL"):
            cache.parse("sql", "a =")
    assert len(cache) == 0
