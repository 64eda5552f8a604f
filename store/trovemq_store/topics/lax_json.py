"""Reads JSON as RocketMQ writes it: standard JSON, except that object keys may be without quotes.

fastjson writes a map with integer keys as `{0:5,1:7}`. Such keys become strings here ("0", "1"), as they
would be in standard JSON, which we write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

JsonObject = dict[str, object]

JSON_SIZE_MAX: Final = 64 * 1024 * 1024

# A string (kept as it is; also one that never ends), or a bare key with its surroundings. A word between
# `{` or `,` and `:` is always a key, because no value is followed by a colon.
_STRING_OR_BARE_KEY: Final = re.compile(
    r'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)|([{,]\s*)([-+.\w]+)(?=\s*:)', re.DOTALL
)


def parse(data: bytes) -> JsonObject:
    """The object in `data` (UTF-8). ValueError if it is not one JSON object, or over JSON_SIZE_MAX."""
    if len(data) > JSON_SIZE_MAX:
        raise ValueError(f"{len(data)} bytes, more than {JSON_SIZE_MAX}")
    text = data.decode("utf-8")
    try:
        document = _loads(text)
    except ValueError:
        document = _loads(_STRING_OR_BARE_KEY.sub(_quoted, text))
    if not isinstance(document, dict):
        raise ValueError(f"an object was expected, found {type(document).__name__}")
    return document


def render(document: JsonObject) -> bytes:
    """Standard JSON, indented by tabs as RocketMQ's own files are."""
    text = json.dumps(document, indent="\t", separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def object_member(parent: Mapping[str, object], name: str) -> JsonObject:
    """The member as an object, empty if missing or null. ValueError if it is something else."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is not an object")
    return value


def integer_member(parent: Mapping[str, object], name: str, default: int) -> int:
    """The member, `default` if missing. ValueError if it is not an integer."""
    number = parent.get(name, default)
    if not isinstance(number, int):
        raise ValueError(f"{name!r} is not an integer")
    return number


def _loads(text: str) -> object:
    try:
        return json.loads(text, strict=False, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON number")


def _quoted(match: re.Match[str]) -> str:
    if match[2] is None:
        return match[0]
    return f'{match[1]}"{match[2]}"'
