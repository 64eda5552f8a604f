"""Filters by SQL-92 conditions: those that RocketMQ takes and refuses, three-valued logic, hostile texts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trials import SOAK
from trovemq_broker.filters.conditions import number_in
from trovemq_broker.filters.filter import EXPRESSION_LENGTH_MAX, Filter, parse_filter
from trovemq_broker.filters.sql import IN_TEXTS_MAX, NESTING_MAX
from trovemq_proto.errors import TroveError

ORDER = {"region": "eu", "price": "12", "ratio": "0.5", "paid": "true", "note": "it's late", "TAGS": "new"}


def matches(expression: str, properties: Mapping[str, str] = ORDER) -> bool:
    return parse_filter("sql", expression).matches(properties)


@pytest.mark.parametrize(
    "expression",
    [
        # comparisons
        "price = 12", "price <> 13", "price > 11", "price >= 12", "price < 13", "price <= 12",
        "12 = price", "11 < price", "price > -1", "price > - 1", "price < +13", "price = 12l", "price = 12L",
        "price = 12.0", "price > 1e1", "price < 1.3E+1", "ratio = .5", "ratio > 0.49", "ratio < 1.",
        "ratio > 0",
        "region = 'eu'", "region <> 'us'", "'eu' = region", "note = 'it''s late'", "TAGS = 'new'",
        "1 = 1", "'a' <> 'b'", "1 < 2",
        # between, in, is
        "price BETWEEN 12 AND 12", "price BETWEEN -5 AND 1e3", "price NOT BETWEEN 1 AND 11",
        "price NOT BETWEEN 20 AND 10", "price BETWEEN ratio AND 100",
        "region IN ('us', 'eu')", "region IN ('eu')", "region NOT IN ('us', 'cn')", "price IN ('12')",
        "missing IS NULL", "region IS NOT NULL", "(missing > 1) IS NULL", "(price > 1) IS NOT NULL",
        # parts of texts
        "region CONTAINS 'u'", "note CONTAINS '''s '", "region STARTSWITH 'e'", "region ENDSWITH 'eu'",
        "region NOT CONTAINS 'x'", "region NOT STARTSWITH 'u'", "region NOT ENDSWITH 'e'",
        "'axb' CONTAINS 'x'", "'axb' NOT CONTAINS '.'",
        # truth values
        "TRUE", "paid = TRUE", "paid <> FALSE", "paid", "region = FALSE", "NOT region", "(price > 1) = TRUE",
        "(price > 1) = paid", "(price > 50) <> TRUE",
        # AND, OR, NOT and their order
        "price = 1 OR price = 12", "price = 12 AND region = 'eu' AND paid", "NOT price = 1",
        "NOT NOT price = 12",
        "price = 12 OR price = 1 AND price = 2", "NOT price = 1 AND region = 'eu'",
        "NOT (price = 12 AND region = 'us')", "((((price = 12))))", "(price) > (11)",
        # how it is written
        "price between 1 and 20 aNd Region is nUlL", " price\t=\r\n12\f", "price=12AND region='eu'",
        "price = 12 -- the rest is a comment", "/* first */ price /***/ = 12 /* a * b */",
    ],
)  # fmt: skip
def test_conditions_that_match_the_message(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "price = 13", "price <> 12", "price > 12", "price < 12", "region = 'EU'", "region <> 'eu'",
        "Region = 'eu'", "FALSE", "NOT TRUE", "NOT paid", "region",
        "price BETWEEN 13 AND 14", "price NOT BETWEEN 12 AND 13", "region NOT IN ('eu')", "region IN ('us')",
        "region IS NULL", "missing IS NOT NULL",
        "region CONTAINS 'U'", "region NOT CONTAINS 'e'", "region STARTSWITH 'u'", "region ENDSWITH 'e'",
        # an empty part is in nothing
        "region CONTAINS ''", "region STARTSWITH ''", "region ENDSWITH ''", "region NOT CONTAINS ''",
        # a property that is not there: unknown, whatever is asked
        "missing = 1", "missing <> 1", "missing = 'x'", "missing <> 'x'", "missing > 1", "missing",
        "NOT missing", "missing = TRUE", "missing <> TRUE", "NOT missing = 1", "NOT missing <> 1",
        "missing BETWEEN 1 AND 2", "missing NOT BETWEEN 1 AND 2", "NOT missing BETWEEN 1 AND 2",
        "missing IN ('x')", "missing NOT IN ('x')", "NOT missing IN ('x')",
        "missing CONTAINS 'x'", "missing NOT CONTAINS 'x'", "missing = other", "missing <> other",
        "5 <> missing", "missing = 1 OR other = 1", "missing = 1 AND TRUE", "NOT (missing = 1 AND TRUE)",
        # text that spells no number: unknown
        "region > 1", "region <= 1", "NOT region > 1", "region = 5", "region <> 5", "region BETWEEN 1 AND 2",
        "region NOT BETWEEN 1 AND 2", "region > price", "note < 1",
    ],
)  # fmt: skip
def test_conditions_that_do_not_match_the_message(expression: str) -> None:
    assert not matches(expression)


def test_unknown_decides_nothing_where_the_other_side_does() -> None:
    assert matches("missing = 1 OR price = 12")
    assert matches("NOT (missing = 1 AND price = 1)")
    assert matches("(missing = 1 OR price = 1) IS NULL")
    assert matches("(missing = 1 AND price = 1) IS NOT NULL")


def test_properties_among_each_other() -> None:
    assert matches("a = b", {"a": "x", "b": "x"})
    assert matches("a <> b", {"a": "1", "b": "1.0"}), "two properties are compared as texts"
    assert matches("a >= b", {"a": "1", "b": "1.0"}), "and as numbers where only numbers have an order"
    assert not matches("a > b", {"a": "b", "b": "a"})
    assert matches("a BETWEEN b AND c", {"a": "5", "b": "-5.5", "c": "1e2"})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-0", 0), ("+7", 7), ("007", 7), ("9223372036854775808", 2**63), ("1.5", 1.5), ("5.", 5.0),
        (".5", 0.5), ("-1e3", -1000.0), ("1E-2", 0.01), ("1" * 400, int("1" * 400)), ("1e999", float("inf")),
        ("", None), (" 1", None), ("1 ", None), ("1l", None), ("1_0", None), ("0x1", None), ("NaN", None),
        ("inf", None), (".", None), ("e1", None), ("1e", None), ("--1", None), ("\u0661", None),
        ("1\n", None),
        ("1" * 401, None), ("true", None),
    ],
)  # fmt: skip
def test_numbers_in_properties(text: str, number: float | None) -> None:
    assert number_in(text) == number


def test_large_numbers_are_compared_exactly() -> None:
    assert matches("id > 9223372036854775806", {"id": "9223372036854775807"})
    assert not matches("id > 9007199254740992.0", {"id": "9007199254740992"})
    assert matches("id > 9007199254740992.0", {"id": "9007199254740993"})


def test_a_keyword_inside_of_a_name_is_a_part_of_the_name() -> None:
    names = [
        "ANDROID",
        "notable",
        "inner",
        "is_open",
        "true1",
        "nullable",
        "$in",
        "or_",
        "containsx",
        "BETWEENS",
    ]
    for name in names:
        assert matches(f"{name} = '1' AND {name} IS NOT NULL", {name: "1"}), name


@pytest.mark.parametrize(
    ("expression", "position", "expected"),
    [
        ("", 1, "found the end, expected (, FALSE, NOT, TRUE, a 'text', a number, a property, a sign"),
        ("a", 0, ""),
        ("a =", 4, "found the end"),
        ("a = = 1", 5, "found '= 1'"),
        ("a == 1", 4, "found '= 1'"),
        ("a != 1", 3, "found '!= 1'"),
        ("a = 1 b = 2", 7, "found 'b = 2', expected AND, OR, the end"),
        ("(a = 1", 7, "found the end, expected )"),
        ("a = 1)", 6, "found ')', expected the end"),
        ("a = 'x", 5, "expected a ' at the end of the text"),
        ('a = "x"', 5, "found '\"x\"'"),
        ("a > 1 > 0", 7, "found '> 0'"),
        ("a > 'x'", 5, "expected a property or a number"),
        ("a < TRUE", 5, "expected a property or a number"),
        ("(a = 1) > 0", 2, "expected a property or a number"),
        ("a = NULL", 5, "found 'NULL'"),
        ("a IS TRUE", 6, "found 'TRUE', expected NOT, NULL"),
        ("a IS NOT 1", 10, "expected NULL"),
        ("a IN ()", 7, "expected a 'text'"),
        ("a IN (1, 2)", 7, "expected a 'text'"),
        ("a IN ('x'", 10, "expected ), ,"),
        ("'x' IN ('x')", 1, "expected a property"),
        ("1 IS NULL", 1, "expected a property"),
        ("a CONTAINS b", 12, "expected a 'text'"),
        ("a NOT CONTAINS 1", 16, "expected a 'text'"),
        ("1 CONTAINS '1'", 1, "expected a property or a 'text'"),
        ("a LIKE 'x%'", 3, "found"),
        ("a BETWEEN 1", 12, "found the end, expected AND"),
        ("a BETWEEN 2 OR 3", 13, "found 'OR 3', expected AND"),
        ("a BETWEEN 10 AND 0", 11, "at most 0"),
        ("a BETWEEN 'a' AND 'b'", 11, "expected a property or a number"),
        ("a AND", 6, "found the end"),
        ("a and between 2 and 10", 7, "found 'between 2 and 10'"),
        ("and = 1", 1, "found 'and = 1'"),
        ("5", 1, "expected a condition"),
        ("'x'", 1, "expected a condition"),
        ("a = 1 AND 'x'", 11, "expected a condition"),
        ("NOT 5", 5, "expected a condition"),
        ("5 = TRUE", 5, "expected a property or a number"),
        ("'5' = 5", 1, "expected a property or a number"),
        ("'x' = TRUE", 1, "expected a condition"),
        ("-a = 1", 2, "expected a number"),
        ("a + 1 = 2", 3, "found '+ 1 = 2'"),
        ("a = 007", 5, "found '007'"),
        ("a = 0x1F", 6, "found 'x1F'"),
        ("a-b = 1", 2, "found '-b = 1'"),
        ("a = 9223372036854775808", 5, "at most 9223372036854775807"),
        ("a = 1" + "0" * 5_000, 5, "at most 9223372036854775807"),
        ("a = 1e309", 5, "a double can hold"),
        ("a = 0." + "0" * 5_000, 5, "a double can hold"),
        ("/* a = 1", 1, "found '/* a = 1'"),
        ("größe = 1", 3, "found '\\xf6\\xdfe = 1'"),
        ("a = 1\x00", 6, "found '\\x00'"),
    ],
)
def test_faults_name_their_place_and_what_was_expected(expression: str, position: int, expected: str) -> None:
    if not position:
        parse_filter("sql", expression)
        return
    with pytest.raises(TroveError) as refused:
        parse_filter("sql", expression)
    assert refused.value.symbol == "FILTER_ILLEGAL"
    assert f"at character {position}: " in refused.value.message
    assert expected in refused.value.message
    assert refused.value.fields["position"] == str(position)


def test_limits() -> None:
    texts = ", ".join(f"'{i}'" for i in range(IN_TEXTS_MAX))
    assert matches(f"a IN ({texts})", {"a": "999"})
    with pytest.raises(TroveError, match=r"FILTER_ILLEGAL.*at most 1000 texts"):
        parse_filter("sql", f"a IN ({texts}, 'x')")
    for nest in ("(%s)", "NOT %s", "NOT (%s)"):
        levels = NESTING_MAX // (2 if nest == "NOT (%s)" else 1)
        nested = "a = 1"
        for _ in range(levels):
            nested = nest % nested
        assert matches(nested, {"a": "1"}) is (levels % 2 == 0 or nest == "(%s)")
        with pytest.raises(TroveError, match=r"FILTER_ILLEGAL.*at most 100 levels"):
            parse_filter("sql", nest % nested)
    longest = "a = 1".ljust(EXPRESSION_LENGTH_MAX)
    assert matches(longest, {"a": "1"})
    with pytest.raises(TroveError, match=r"FILTER_ILLEGAL.*8193 characters, more than 8192"):
        parse_filter("sql", longest + " ")


def test_a_condition_of_many_parts_on_every_level_is_evaluated() -> None:
    nested = "a = 1"
    for _ in range(NESTING_MAX):
        nested = f"(b AND c OR {nested})"
    assert matches(nested, {"a": "1", "b": "true"})


def parsed_or_refused(expression: str) -> Filter | TroveError:
    try:
        return parse_filter("sql", expression)
    except TroveError as error:
        return error


@pytest.mark.parametrize(
    "hostile",
    [
        "(" * 8_192, "(" * 4_000 + "a" + ")" * 4_000, "NOT " * 2_048, "a=1 OR " * 1_169 + "a=1", "'" * 8_191,
        "a='" + "''" * 4_000, "/*" + "*" * 8_000, "/*" + "*/*" * 2_700, "-" * 8_191, "+" * 8_191, "." * 8_000,
        "1e" * 4_000, "\U0001f600" * 8_192, "\ud800" * 8_192, "a IN (" + "''," * 2_700, "a IS NOT " * 900,
        "a BETWEEN " * 800, "=" * 8_192, "\x00" * 8_192, " " * 8_192, "a=" + "9" * 8_000, "a=." + "9" * 8_000,
    ],
    ids=lambda text: ascii(text[:12]),
)  # fmt: skip
def test_hostile_expressions_take_no_time(hostile: str) -> None:
    begun = time.process_time()
    made = parsed_or_refused(hostile)
    if isinstance(made, TroveError):
        assert made.symbol == "FILTER_ILLEGAL"
        assert len(made.message) < 500
    else:
        assert not made.matches({})
    assert time.process_time() - begun < 1.0, "it takes some 50 ms"


WORDS = [
    "AND", "or", "Not", "=", "<>", "<", ">=", "(", ")", ",", "IN", "IS", "NULL", "BETWEEN", "CONTAINS",
    "TRUE", "a", "b_1", "$x", "'t'", "''", "'", "1", "-2", "3.5e1", ".", "/*", "*/", "--", "\n", "é",
]  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)))
def test_any_text_is_a_filter_or_illegal(text: str) -> None:
    made = parsed_or_refused(text)
    if isinstance(made, TroveError):
        assert made.symbol == "FILTER_ILLEGAL"
        assert 1 <= int(made.fields["position"]) <= len(text) + 1
    else:
        assert made.matches({"a": "1", "$x": "t"}) in (True, False)


# --- a second evaluator: random trees, written as text at random, and evaluated plainly --------

Tree = tuple[Any, ...]

names = st.sampled_from(["a", "b", "c", "nothing"])
integers = st.integers(-3, 30)
numbers = st.one_of(integers, st.sampled_from([0.5, -1.5, 10.0, 2.25e3, 1e-7]))
texts = st.sampled_from(["", "x", "xy", "10", "true", "it's", "é"])
number_sides = st.one_of(st.tuples(st.just("name"), names), st.tuples(st.just("number"), numbers))
text_sides = st.one_of(st.tuples(st.just("name"), names), st.tuples(st.just("text"), texts))
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("order"), st.sampled_from(["<", "<=", ">", ">="]), number_sides, number_sides),
    st.tuples(
        st.just("equal"), st.sampled_from(["=", "<>"]), st.tuples(st.just("name"), names), number_sides
    ),
    st.tuples(st.just("equal"), st.sampled_from(["=", "<>"]), text_sides, text_sides),
    st.tuples(st.just("between"), st.booleans(), names, integers, integers),
    st.tuples(st.just("in"), st.booleans(), names, st.lists(texts, min_size=1, max_size=4)),
    st.tuples(st.just("null"), st.booleans(), names),
    st.tuples(
        st.just("part"), st.booleans(), st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), names, texts
    ),
    st.tuples(st.just("is_true"), names, st.booleans()),
    st.tuples(st.just("constant"), st.booleans()),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
    ),
    max_leaves=8,
)
messages = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.one_of(
        texts, integers.map(str), st.sampled_from(["0.5", "1e1", "-1.5", "nan", " 1", "TRUE", "False"])
    ),
)


def value_of(side: Tree, message: Mapping[str, str]) -> Any:
    return message.get(side[1]) if side[0] == "name" else side[1]


def as_number(value: Any) -> float | None:
    """Exact enough for the numbers above."""
    if isinstance(value, str):
        decimal = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", value, re.IGNORECASE)
        return float(value) if decimal else None
    return None if value is None else float(value)


def negate(truth: bool | None) -> bool | None:
    return {True: False, False: True, None: None}[truth]


def evaluate(tree: Tree, message: Mapping[str, str]) -> bool | None:
    match tree:
        case ("not", inner):
            return negate(evaluate(inner, message))
        case ("and" | "or", left, right):
            both = {evaluate(left, message), evaluate(right, message)}
            decisive = tree[0] == "or"
            return decisive if decisive in both else None if None in both else not decisive
    return evaluate_leaf(tree, message)


def evaluate_leaf(tree: Tree, message: Mapping[str, str]) -> bool | None:
    match tree:
        case ("order", sign, left, right):
            a, b = as_number(value_of(left, message)), as_number(value_of(right, message))
            if a is None or b is None:
                return None
            return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]
        case ("equal", sign, left, right):
            a, b = value_of(left, message), value_of(right, message)
            if "number" in (left[0], right[0]):
                a, b = as_number(a), as_number(b)
            if a is None or b is None:
                return None
            return (a == b) is (sign == "=")
        case ("between", negated, name, low, high):
            number = as_number(message.get(name))
            return None if number is None else (low <= number <= high) is not negated
        case ("in", negated, name, listed):
            return (message[name] in listed) is not negated if name in message else None
        case ("null", negated, name):
            return (name in message) is negated
        case ("part", negated, how, name, part):
            value = message.get(name)
            if value is None or not part:
                return False
            found = {"CONTAINS": part in value, "STARTSWITH": value.startswith(part)}
            return found.get(how, value.endswith(part)) is not negated
        case ("is_true", name, wanted):
            return (message[name].lower() == "true") is wanted if name in message else None
        case ("constant", truth):
            return bool(truth)
    raise AssertionError(tree)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree, word: Callable[[str], str]) -> str:
    """The tree as text; `word` spells a keyword."""

    def side(part: Tree) -> str:
        return quoted(part[1]) if part[0] == "text" else str(part[1])

    def inner(part: Tree) -> str:
        text = written(part, word)
        return f"({text})" if part[0] in ("and", "or", "not") or word("x") == "X" else text

    match tree:
        case ("not", part):
            return f"{word('not')} {inner(part)}"
        case ("and" | "or", left, right):
            return f"{inner(left)} {word(tree[0])} {inner(right)}"
        case ("order" | "equal", sign, left, right):
            return f"{side(left)}{sign}{side(right)}"
        case ("between", negated, name, low, high):
            return f"{name} {word('not') if negated else ''} {word('between')} {low} {word('and')} {high}"
        case ("in", negated, name, listed):
            return f"{name} {word('not') if negated else ''} {word('in')}({','.join(map(quoted, listed))})"
        case ("null", negated, name):
            return f"{name} {word('is')} {word('not') if negated else ''} {word('null')}"
        case ("part", negated, how, name, part):
            return f"{name} {word('not') if negated else ''} {word(how)} {quoted(part)}"
        case ("is_true", name, wanted):
            return f"{name} = {word('true' if wanted else 'false')}"
    return word("true" if tree[1] else "false")


def is_refused(tree: Tree) -> bool:
    """BETWEEN with its numbers the wrong way round is a fault; NOT BETWEEN is not."""
    if tree[0] == "between":
        return not tree[1] and tree[3] > tree[4]
    return any(is_refused(part) for part in tree[1:] if isinstance(part, tuple) and part[0] != "name")


@pytest.mark.slow
@pytest.mark.untraced
@settings(max_examples=400 if SOAK else 100)
@given(trees, messages, st.sampled_from([str.upper, str.lower, str.title]))
def test_agrees_with_a_plain_evaluator(
    tree: Tree, message: dict[str, str], word: Callable[[str], str]
) -> None:
    text = written(tree, word)
    if is_refused(tree):
        with pytest.raises(TroveError, match="FILTER_ILLEGAL"):
            parse_filter("sql", text)
        return
    truth = evaluate(tree, message)
    assert parse_filter("sql", text).matches(message) is (truth is True), text
    assert parse_filter("sql", f"({text}) IS NULL").matches(message) is (truth is None), text
    assert parse_filter("sql", f"NOT ({text})").matches(message) is (truth is False), text
