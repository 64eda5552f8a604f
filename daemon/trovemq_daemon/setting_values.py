"""Parses the texts of settings, with one parser per type, and formats values for `--print-config`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

TEXT_LENGTH_MAX: Final = 4_096

_UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "bytes": {
        "": 1, "b": 1,
        "k": 1 << 10, "kb": 1_000, "kib": 1 << 10,
        "m": 1 << 20, "mb": 1_000_000, "mib": 1 << 20,
        "g": 1 << 30, "gb": 1_000_000_000, "gib": 1 << 30,
    },
    "ms": {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000},
}  # fmt: skip
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


def raw_text(raw: object) -> str:
    """A value of a TOML file as the text that the parsers read. Raises ValueError for a table."""
    match raw:
        case bool():
            return "true" if raw else "false"
        case int() | str():
            return str(raw)
        case list() if all(isinstance(item, str) for item in raw):
            return ",".join(raw)
        case _:
            raise ValueError(f"a {type(raw).__name__} cannot be a setting's value")


def parse_value(type_: Any, unit: str, text: str) -> Any:
    """The value of one setting. `type_` is int, bool, str, a Literal of texts, or tuple[str, ...].

    Raises ValueError with the allowed form.
    """
    text = text.strip()
    if type_ is bool:
        return _parse_bool(text)
    if type_ is int:
        return _parse_int(text, unit)
    if get_origin(type_) is Literal:
        return _parse_choice(text, get_args(type_))
    _check_text(text)
    if type_ is str:
        return text
    return tuple(part for part in (part.strip() for part in re.split("[,;]", text)) if part)


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("must be true or false")


def _parse_int(text: str, unit: str) -> int:
    match = re.fullmatch(r"([+-]?[0-9][0-9_]{0,30})\s*([A-Za-z]*)", text)
    factors = _UNITS.get(unit, {"": 1})
    if match is None or match[2].lower() not in factors:
        examples = {"bytes": ", for example 65536 or 64KiB", "ms": ", for example 500 or 5s"}
        raise ValueError(f"must be a whole number{examples.get(unit, '')}")
    return int(match[1].replace("_", "")) * factors[match[2].lower()]


def _parse_choice(text: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if text.casefold() == choice.casefold():
            return choice
    raise ValueError(f"must be one of {', '.join(choices)}")


def _check_text(text: str) -> None:
    if len(text) > TEXT_LENGTH_MAX:
        raise ValueError(f"must not be longer than {TEXT_LENGTH_MAX} characters")
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in text):
        raise ValueError("must not have control characters")


def toml_value(value: object) -> str:
    """The value as TOML, which `parse_value` reads back."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
