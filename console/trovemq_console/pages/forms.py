"""Forms of the console's pages: their fields, each as often as it was sent."""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Sequence
from typing import Final

from starlette.requests import Request

from trovemq import TroveError, errors

FORM_SIZE_MAX: Final = 13 << 20  # a body of 4 MiB, each byte as %XX, and the rest
FIELDS_MAX: Final = 1_100
_OFFSET_DIGITS_MAX: Final = 19
_CUT_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Form:
    """The fields of a form, each as often as it was sent."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self.fields = tuple((name, value) for name, value in fields if name not in ("token", "confirmed"))
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name, []).append(value)

    def with_value(self, name: str, value: str) -> Form:
        """The form with another value of one field."""
        return Form([(key, value if key == name else old) for key, old in self.fields])

    def text(self, name: str) -> str:
        """The field's value; "" where it is missing."""
        return self._values.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Every value of the field that is not empty."""
        return [value for value in self._values.get(name, []) if value]

    def required(self, name: str) -> str:
        """Raises TroveError REQUEST_ILLEGAL where it is empty."""
        value = self.text(name).strip()
        if not value:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{name} is empty", field=name)
        return value

    def words(self, name: str) -> list[str]:
        """The field's parts, with spaces or commas between."""
        return self.text(name).replace(",", " ").split()

    def choice(self, name: str, choices: Collection[str]) -> str:
        """Raises TroveError REQUEST_ILLEGAL for anything else."""
        value = self.text(name).strip()
        if value not in choices:
            wanted = ", ".join(choice for choice in choices if choice)
            raise TroveError(errors.REQUEST_ILLEGAL, f"{name}={value[:40]} is none of {wanted}", field=name)
        return value

    def number(self, name: str) -> int:
        """Raises TroveError REQUEST_ILLEGAL for anything else."""
        return whole_number(self.required(name), name)


def whole_number(value: str, name: str) -> int:
    """Raises TroveError REQUEST_ILLEGAL."""
    if not (value.isascii() and value.isdigit() and len(value) <= _OFFSET_DIGITS_MAX):
        text = f"{name}={value[:40]} is no whole number from 0 on"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field=name)
    return int(value)


async def read_form(request: Request, size_max: int = FORM_SIZE_MAX) -> Form:
    """The form. Raises TroveError REQUEST_ILLEGAL where it is too large or not a form; then the rest of it is
    not read."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > size_max:
            raise TroveError(errors.REQUEST_ILLEGAL, f"the form is larger than {size_max} bytes")
    try:
        return Form(_fields_of(bytes(content)))
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"that is not a form: {error}") from None


def _fields_of(content: bytes) -> list[tuple[str, str]]:
    """(name, value) of each field of a form, decoded. Raises ValueError. `urllib.parse.parse_qsl` would make
    an object of each `%XX` of a body: a hundred times the memory."""
    if not content.isascii():
        raise ValueError("it has bytes beyond ASCII")
    if content.count(b"&") >= FIELDS_MAX:
        raise ValueError(f"it has more than {FIELDS_MAX} fields")
    if _CUT_ESCAPE.search(content):
        raise ValueError("a % without two hexadecimal digits")
    pairs = (field.partition(b"=") for field in content.split(b"&") if field)
    return [(_unescaped(name), _unescaped(value)) for name, _, value in pairs]


def _unescaped(text: bytes) -> str:
    """The text without escapes. MIME's quoted-printable has them with another sign, and a function in C."""
    quoted = text.replace(b"+", b" ").replace(b"=", b"%3D").replace(b"\r", b"%0D").replace(b"\n", b"%0A")
    return binascii.a2b_qp(quoted.replace(b"%", b"=")).decode("utf-8", "replace")
