"""The subset of JSONPath that names one value: `$.a.b[0]["a name"]`.

A value is compared as text: a string as it is, any other value in its JSON form (`12`, `1.5`, `true`, `null`,
`{"a":1}` without spaces).
"""

from __future__ import annotations

import json
import re
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Step = str | int

_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]"'\s]+) | \[(?P<index>-?\d{1,9})\] | \[(?P<quoted>"(?:[^"\\]|\\.)*")\]
      | \['(?P<single>[^']*)'\]""",
    re.VERBOSE,
)
_MISSING: Final = object()


def parse_path(path: str) -> tuple[Step, ...]:
    """The steps from the root. Raises TroveError OPTION_ILLEGAL."""
    text = path.removeprefix("$")
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise TroveError(
                errors.OPTION_ILLEGAL,
                f'json_path {path!r}: the part {text[position:]!r} is none of .name, [0], ["name"]',
                field="json_path",
            )
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["index"] is not None:
        return int(match["index"])
    if match["quoted"] is not None:
        return str(json.loads(match["quoted"]))
    return match["name"] if match["name"] is not None else match["single"]


def has_value(body: bytes | None, steps: tuple[Step, ...], wanted: str | None) -> bool:
    """Whether the body is JSON (UTF-8) with this value at the path; None: any value."""
    if body is None:
        return False
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    for step in steps:
        value = _below(value, step)
        if value is _MISSING:
            return False
    return wanted is None or text_of(value) == wanted


def _below(value: object, step: Step) -> object:
    if isinstance(value, dict) and isinstance(step, str):
        return value.get(step, _MISSING)
    if isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
        return value[step]
    return _MISSING


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def literal_in_body(wanted: str | None) -> bytes | None:
    """Bytes that every body with this value has, unless it uses escapes; None if that is not certain (a
    number can be written in several forms)."""
    if not wanted or not all(character.isalnum() or character in " _-.:" for character in wanted):
        return None
    try:
        json.loads(wanted)
    except (ValueError, RecursionError):
        return wanted.encode()
    return None
