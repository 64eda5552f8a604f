"""The value of a condition on a message's properties: True, False, or None for unknown.

Conditions are small functions, made once per expression. A property is text; its context may require a number
or a truth value:

- next to a number, or with `<`, `<=`, `>`, `>=`, it is the decimal number that the text spells, or unknown;
- next to TRUE, FALSE or a condition, and alone, it is true if the text spells `true`, else false.

A property that a message does not have is unknown. RocketMQ differs in one point: if the text does not spell
a number of the literal's type, it drops the message, whatever the rest of the expression is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Properties = Mapping[str, str]
Truth = bool | None
Number = int | float
Condition = Callable[[Properties], Truth]
NumberOf = Callable[[Properties], Number | None]
TextOf = Callable[[Properties], str | None]

NUMBER_LENGTH_MAX: Final = 400  # more digits than any double needs
_NUMBER: Final = re.compile(r"[+-]?(?:([0-9]+)|[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def number_in(text: str) -> Number | None:
    """The decimal number that the whole text spells: an int of any size, or a float."""
    if len(text) > NUMBER_LENGTH_MAX or (match := _NUMBER.fullmatch(text)) is None:
        return None
    return int(text) if match.end(1) == len(text) else float(text)


def truth_in(text: str) -> bool:
    return text.lower() == "true"


def text_property(name: str) -> TextOf:
    return lambda properties: properties.get(name)


def number_property(name: str) -> NumberOf:
    def value(properties: Properties) -> Number | None:
        text = properties.get(name)
        return None if text is None else number_in(text)

    return value


def truth_property(name: str) -> Condition:
    def value(properties: Properties) -> Truth:
        text = properties.get(name)
        return None if text is None else truth_in(text)

    return value


def equal(left: Callable[[Properties], object], right: Callable[[Properties], object]) -> Condition:
    """Unknown if one side is."""

    def evaluate(properties: Properties) -> Truth:
        if (a := left(properties)) is None or (b := right(properties)) is None:
            return None
        return a == b

    return evaluate


def compare(left: NumberOf, right: NumberOf, holds: Callable[[Number, Number], bool]) -> Condition:
    """Unknown if one side is."""

    def evaluate(properties: Properties) -> Truth:
        if (a := left(properties)) is None or (b := right(properties)) is None:
            return None
        return holds(a, b)

    return evaluate


def between(value: NumberOf, low: NumberOf, high: NumberOf) -> Condition:
    """low <= value AND value <= high."""
    return all_of(
        (compare(low, value, lambda a, b: a <= b), compare(value, high, lambda a, b: a <= b)),
    )


def is_in(text: TextOf, texts: frozenset[str]) -> Condition:
    def evaluate(properties: Properties) -> Truth:
        value = text(properties)
        return None if value is None else value in texts

    return evaluate


def has_part(text: TextOf, part: str, holds: Callable[[str, str], bool], *, negated: bool) -> Condition:
    """CONTAINS and its like. False, not unknown, without a value or with an empty part: so RocketMQ has it,
    for the negated forms too."""

    def evaluate(properties: Properties) -> Truth:
        value = text(properties)
        return value is not None and part != "" and holds(value, part) is not negated

    return evaluate


def is_unknown(value: Callable[[Properties], object]) -> Condition:
    return lambda properties: value(properties) is None


def negation(condition: Condition) -> Condition:
    def evaluate(properties: Properties) -> Truth:
        truth = condition(properties)
        return None if truth is None else not truth

    return evaluate


def all_of(conditions: Sequence[Condition]) -> Condition:
    """AND: False if one condition is, else unknown if one is."""

    def evaluate(properties: Properties) -> Truth:
        result: Truth = True
        for condition in conditions:
            truth = condition(properties)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return evaluate


def any_of(conditions: Sequence[Condition]) -> Condition:
    """OR: True if one condition is, else unknown if one is."""

    def evaluate(properties: Properties) -> Truth:
        result: Truth = False
        for condition in conditions:
            truth = condition(properties)
            if truth is True:
                return True
            if truth is None:
                result = None
        return result

    return evaluate
