"""Checks the types of arguments: an error names the argument, and the type that was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.records.properties import not_of

_TEXT_ONLY: Final = {str}
_BODY_TYPES: Final = {bytes, bytearray, memoryview}

TOPIC_NAME_MAX: Final = 127


def check_text(name: str, value: object, spec: ErrorSpec = errors.REQUEST_ILLEGAL) -> None:
    """Raises TroveError unless the value is text."""
    if not isinstance(value, str):
        raise TroveError(spec, f"{name} is text, {not_of(value)}", argument=name)


def check_optional_text(name: str, value: object, spec: ErrorSpec = errors.REQUEST_ILLEGAL) -> None:
    """Raises TroveError unless the value is text or None."""
    if value is not None:
        check_text(name, value, spec)


def check_number(name: str, value: object, spec: ErrorSpec = errors.REQUEST_ILLEGAL) -> None:
    """Raises TroveError unless the value is a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TroveError(spec, f"{name} is a whole number, {not_of(value)}", argument=name)


def check_numbers(**numbers: object) -> None:
    """Calls check_number for each number that is not None."""
    for name, value in numbers.items():
        if value is not None:
            check_number(name, value)


def check_amount(name: str, value: object, *, above: bool = False) -> None:
    """Raises TroveError unless the value is a number from 0 on; above: from anything above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name} is a number, {not_of(value)}", argument=name)
    if not (value > 0 if above else value >= 0):
        wanted = "positive" if above else "a number from 0 on"
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name}={value} is not {wanted}", argument=name)


def check_type(name: str, value: object, wanted: type[object]) -> None:
    """Raises TroveError unless the value is one of that class."""
    if not isinstance(value, wanted):
        text = f"{name} is of type {wanted.__name__}, not {type(value).__name__}"
        raise TroveError(errors.REQUEST_ILLEGAL, text, argument=name)


def check_callable(name: str, value: object) -> None:
    """Raises TroveError unless the value is a function or None."""
    if value is not None and not callable(value):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name} is a function, {not_of(value)}", argument=name)


def check_body(body: object) -> None:
    """Raises TypeError unless a message's body is bytes."""
    if type(body) is not bytes and not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"a message's body is bytes, not {type(body).__name__}")


def check_bodies(bodies: object) -> None:
    """Raises TypeError unless the bodies of a batch are a sequence of bytes."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping) or not isinstance(bodies, Sequence):
        raise TypeError(f"the bodies of a batch are a sequence of bytes, not {type(bodies).__name__}")
    if not set(map(type, bodies)) <= _BODY_TYPES:
        for body in bodies:
            check_body(body)


def check_sequence(name: str, values: object, spec: ErrorSpec = errors.REQUEST_ILLEGAL) -> Iterable[object]:
    """The values. Raises TroveError unless they are a sequence."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TroveError(spec, f"{name} is a sequence of texts, {not_of(values)}", argument=name)
    return values


def check_texts(name: str, values: object, spec: ErrorSpec = errors.REQUEST_ILLEGAL) -> None:
    """Raises TroveError unless the values are texts; needs no Python loop if they are."""
    several = check_sequence(name, values, spec)
    if not set(map(type, several)) <= _TEXT_ONLY:
        for value in several:
            check_text(name, value, spec)


def recordable_topic(topic: str) -> str:
    """The name. Raises TroveError TOPIC_ILLEGAL if it is too long for a record, or not valid Unicode."""
    check_text("topic", topic, errors.TOPIC_ILLEGAL)
    if len(topic) > TOPIC_NAME_MAX or any("\ud800" <= character <= "\udfff" for character in topic):
        text = (
            f"a topic's name has at most {TOPIC_NAME_MAX} characters, not {len(topic)}, and is valid Unicode"
        )
        raise TroveError(errors.TOPIC_ILLEGAL, text)
    return topic
