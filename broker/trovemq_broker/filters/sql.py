"""Filters by RocketMQ's SQL-92 conditions on properties: translates the text into one function.

No part of the text is executed: a parser makes small functions of it (see conditions.py). The cost is
bounded: the length of the text by the caller, nesting and IN lists here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, UnexpectedToken

from trovemq_broker.filters import conditions
from trovemq_broker.filters.conditions import Condition, Number, NumberOf, Properties, TextOf
from trovemq_broker.filters.sql_grammar import GRAMMAR, SPOKEN
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NESTING_MAX: Final = 100
IN_TEXTS_MAX: Final = 1_000
LONG_MAX: Final = 2**63 - 1
_FOUND_LENGTH_MAX: Final = 20
_LITERAL_LENGTH_MAX: Final = 400

_ORDERS: Final[dict[str, Callable[[Number, Number], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class SqlFilter:
    """Matches messages for which the condition is true, not those for which it is unknown."""

    kind: Literal["tag", "sql"] = "sql"
    tag_hashes: frozenset[int] | None = None
    takes_all = False

    def __init__(self, expression: str, condition: Condition) -> None:
        self.expression = expression
        self._condition = condition

    def matches(self, properties: Properties) -> bool:
        return self._condition(properties) is True


@dataclass(frozen=True, slots=True)
class Operand:
    """A part of the expression, at `position` (characters from 0), with its depth."""

    position: int
    name: str | None = None  # of a property
    value: str | Number | bool | None = None  # of a literal
    condition: Condition | None = None
    depth: int = 0

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)

    @property
    def is_truth(self) -> bool:
        return isinstance(self.value, bool) or self.condition is not None

    def number(self) -> NumberOf:
        if self.name is not None:
            return conditions.number_property(self.name)
        if not self.is_number:
            _refuse(self.position, "expected a property or a number")
        value: Any = self.value
        return lambda _properties: value

    def text(self) -> TextOf:
        if self.name is not None:
            return conditions.text_property(self.name)
        if not isinstance(self.value, str):
            _refuse(self.position, "expected a property or a 'text'")
        value = self.value
        return lambda _properties: value

    def truth(self) -> Condition:
        if self.condition is not None:
            return self.condition
        if self.name is not None:
            return conditions.truth_property(self.name)
        if not isinstance(self.value, bool):
            _refuse(self.position, "expected a condition")
        value = self.value
        return lambda _properties: value


class _Compiler(Transformer[Token, Operand]):
    """Makes an Operand of each rule during the parsing. The arguments are the rule's parts in order."""

    def property(self, parts: list[Token]) -> Operand:
        return Operand(_position(parts[0]), name=str(parts[0]))

    def text(self, parts: list[Token]) -> Operand:
        return Operand(_position(parts[0]), value=_unquoted(parts[0]))

    def truth(self, parts: list[Token]) -> Operand:
        return Operand(_position(parts[0]), value=parts[0].type == "TRUE")

    def number(self, parts: list[Token]) -> Operand:
        digits = parts[-1]
        value = _long(digits) if digits.type == "LONG" else _double(digits)
        return Operand(_position(parts[0]), value=-value if parts[0] == "-" else value)

    def nested(self, parts: list[Operand]) -> Operand:
        inner = parts[0]
        return Operand(
            inner.position, inner.name, inner.value, inner.condition, _deeper(inner.position, parts)
        )

    def or_condition(self, parts: list[Operand]) -> Operand:
        return _combined(conditions.any_of([part.truth() for part in parts]), parts)

    def and_condition(self, parts: list[Operand]) -> Operand:
        return _combined(conditions.all_of([part.truth() for part in parts]), parts)

    def negation(self, parts: list[Any]) -> Operand:
        position = _position(parts[0])
        negated = conditions.negation(parts[1].truth())
        return Operand(position, condition=negated, depth=_deeper(position, parts[1:]))

    def equality(self, parts: list[Any]) -> Operand:
        left, sign, right = parts
        condition = _equal(left, right)
        return _combined(conditions.negation(condition) if sign == "<>" else condition, (left, right))

    def order(self, parts: list[Any]) -> Operand:
        left, sign, right = parts
        return _combined(conditions.compare(left.number(), right.number(), _ORDERS[sign]), (left, right))

    def between(self, parts: list[Any]) -> Operand:
        value, _between, low, high = parts
        if low.is_number and high.is_number and low.value > high.value:
            _refuse(low.position, f"expected a number that is at most {high.value}, the upper one")
        condition = conditions.between(value.number(), low.number(), high.number())
        return _combined(condition, (value, low, high))

    def not_between(self, parts: list[Any]) -> Operand:
        value, _not, _between, low, high = parts
        condition = conditions.between(value.number(), low.number(), high.number())
        return _combined(conditions.negation(condition), (value, low, high))

    def texts(self, parts: list[Token]) -> frozenset[str]:
        if len(parts) > IN_TEXTS_MAX:
            _refuse(_position(parts[IN_TEXTS_MAX]), f"expected at most {IN_TEXTS_MAX} texts")
        return frozenset(_unquoted(part) for part in parts)

    def is_in(self, parts: list[Any]) -> Operand:
        value, _in, texts = parts
        return _combined(conditions.is_in(_only_property(value).text(), texts), (value,))

    def is_not_in(self, parts: list[Any]) -> Operand:
        value, _not, _in, texts = parts
        condition = conditions.is_in(_only_property(value).text(), texts)
        return _combined(conditions.negation(condition), (value,))

    def has_part(self, parts: list[Any]) -> Operand:
        value, how, part = parts
        return _part(value, how, part, negated=False)

    def has_not_part(self, parts: list[Any]) -> Operand:
        value, _not, how, part = parts
        return _part(value, how, part, negated=True)

    def is_null(self, parts: list[Any]) -> Operand:
        return _combined(_is_null(parts[0]), (parts[0],))

    def is_not_null(self, parts: list[Any]) -> Operand:
        return _combined(conditions.negation(_is_null(parts[0])), (parts[0],))


_PARSER: Final = Lark(
    GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler(), maybe_placeholders=False
)


def parse_sql(expression: str) -> SqlFilter:
    """Parses the expression. Raises TroveError FILTER_ILLEGAL with the position (from 1) and the tokens that
    were expected there."""
    try:
        whole: Any = _PARSER.parse(expression)
    except UnexpectedInput as error:
        position = len(expression) if _is_at_end(error) else _counted(error.pos_in_stream)
        raise _fault(position, _expected(expression[position:], error)) from None
    return SqlFilter(expression, whole.truth())


def _is_at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _equal(left: Operand, right: Operand) -> Condition:
    """Compares numbers, truth values or texts with one another; a property has the type of the other side."""
    if left.is_number or right.is_number:
        return conditions.equal(left.number(), right.number())
    if left.is_truth or right.is_truth:
        return conditions.equal(left.truth(), right.truth())
    return conditions.equal(left.text(), right.text())


def _part(value: Operand, how: Token, part: Token, *, negated: bool) -> Operand:
    condition = conditions.has_part(value.text(), _unquoted(part), _PARTS[how.upper()], negated=negated)
    return _combined(condition, (value,))


def _is_null(value: Operand) -> Condition:
    if value.condition is not None:
        return conditions.is_unknown(value.condition)
    return conditions.is_unknown(_only_property(value).text())


def _only_property(value: Operand) -> Operand:
    if value.name is None:
        _refuse(value.position, "expected a property")
    return value


def _combined(condition: Condition, parts: Iterable[Operand]) -> Operand:
    first, *others = parts
    return Operand(
        first.position, condition=condition, depth=max(first.depth, *(part.depth for part in others), 0)
    )


def _deeper(position: int, parts: Iterable[Operand]) -> int:
    depth = max(part.depth for part in parts) + 1
    if depth > NESTING_MAX:
        _refuse(position, f"expected at most {NESTING_MAX} levels of parentheses and NOT")
    return depth


def _long(token: Token) -> int:
    digits = token.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        _refuse(_position(token), f"expected a whole number of at most {LONG_MAX}")
    return int(digits)


def _double(token: Token) -> float:
    if len(token) > _LITERAL_LENGTH_MAX or math.isinf(value := float(token)):
        _refuse(_position(token), "expected a number that a double can hold")
    return value


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _position(token: Token) -> int:
    return _counted(token.start_pos)


def _counted(position: object) -> int:
    """A position in the expression, from the lexer: from 0."""
    assert isinstance(position, int), "every token and every character has a position"
    assert position >= 0, "no position is before the expression"
    return position


def _expected(rest: str, error: UnexpectedInput) -> str:
    """The token at which the parser could not continue, and the expected ones."""
    if rest.startswith("'"):
        return "expected a ' at the end of the text"
    parser: Any = error.interactive_parser
    wanted = sorted({SPOKEN[name] for name in parser.accepts()})
    found = ascii(rest[:_FOUND_LENGTH_MAX]) if rest else "the end"
    return f"found {found}, expected {', '.join(wanted)}"


def _fault(position: int, what: str) -> TroveError:
    return TroveError(
        errors.FILTER_ILLEGAL, f"SQL filter: at character {position + 1}: {what}", position=position + 1
    )


def _refuse(position: int, what: str) -> NoReturn:
    raise _fault(position, what)
