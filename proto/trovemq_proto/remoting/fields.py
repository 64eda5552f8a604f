"""Reads the fields of a request's header. They travel as text, whatever their type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 20  # of a 64-bit number with its sign
_SHORT_MAX: Final = 9  # digits of numbers that every type has


class FieldError(ValueError):
    """A field is missing, or is not of its type. The text is for the response's remark."""


class Fields:
    """Of one request. Each call raises FieldError."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def text(self, name: str, default: str | None = None) -> str:
        """`default`: None: it is required."""
        found = self._texts.get(name, default)
        if found is None:
            raise FieldError(f"the header lacks the field {name}")
        return found

    def int32(self, name: str, default: int | None = None) -> int:
        return self._number(name, default, INT32_MAX)

    def int64(self, name: str, default: int | None = None) -> int:
        return self._number(name, default, INT64_MAX)

    def boolean(self, name: str, default: bool = False) -> bool:
        """As Java reads it: every text but true is false."""
        found = self._texts.get(name)
        return default if found is None else found.lower() == "true"

    def _number(self, name: str, default: int | None, limit: int) -> int:
        text = self._texts.get(name)
        if text is None:
            if default is None:
                raise FieldError(f"the header lacks the field {name}")
            return default
        if len(text) <= _SHORT_MAX and text.isdigit() and text.isascii():
            return int(text)
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit() and len(text) <= _DIGITS_MAX):
            raise FieldError(f"the field {name} is not a number")
        number = int(text)
        if not -limit - 1 <= number <= limit:
            raise FieldError(f"the field {name} has more than {limit.bit_length() + 1} bits")
        return number
