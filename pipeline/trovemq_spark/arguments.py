"""Makes a job's arguments from the command line: `--store`, `--archive` … and `--set NAME=VALUE`.

Every job has one frozen dataclass; its fields are the names that `--set` knows. The type of a field is
Annotated[type, text], where the text is its documentation. The module of a job imports no Spark, so that help
and errors of usage need none.

| type of the field    | written as                                                                          |
|----------------------|-------------------------------------------------------------------------------------|
| str                  | any text                                                                            |
| bool                 | true, false, yes, no, 1, 0                                                          |
| int                  | a number; with `bytes` in its name also 64MiB, 1GB; with `_ms` or `_seconds` at its |
|                      | end also 500ms, 10s, 2h; with `timestamp` or `time` in it also 2025-01-01T00:00:00Z |
| float                | a number                                                                            |
| tuple[str or int, …] | the values, separated by commas; given twice, both                                  |
| X or None            | as X                                                                                |
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

COMMON: Final = ("store", "server", "archive", "out")
"""Fields that have their own command-line options."""

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([KMGT]i?B|B)", re.ASCII)
_SIZE_POWERS: Final = {"K": 1, "M": 2, "G": 3, "T": 4}
_INTEGER: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class UsageError(Exception):
    """The command line is wrong; the text names the fault and the right form."""


@dataclass(frozen=True, slots=True)
class FieldHelp:
    """A field of a job's arguments. `default` is MISSING (of dataclasses) if a value is required."""

    name: str
    type: str
    default: object
    text: str

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


# --- the arguments of a job ---------------------------------------------------------------------------


def arguments_class(module: str) -> type[Any]:
    """Imports the job's module. Returns its last dataclass whose name ends with Arguments."""
    found = [
        value
        for name, value in vars(importlib.import_module(module)).items()
        if name.endswith("Arguments") and dataclasses.is_dataclass(value) and isinstance(value, type)
    ]
    own = [value for value in found if value.__module__ == module]
    assert own, f"{module} has no dataclass of arguments"
    return own[-1]


def fields_of(kind: type[Any]) -> list[FieldHelp]:
    """The fields of a dataclass; each has the type Annotated[type, text]."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_field_help(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _field_help(field: dataclasses.Field[Any], hint: Any) -> FieldHelp:
    kind, text = typing.get_args(hint)
    name = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    return FieldHelp(field.name, name.removeprefix("typing."), field.default, text)


def split_settings(settings: Iterable[str]) -> dict[str, list[str]]:
    """`NAME=VALUE` … by name. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes NAME=VALUE, not {setting!r}")
        found.setdefault(name, []).append(value)
    return found


def check_names(
    job: str, fields: Sequence[FieldHelp], common: Mapping[str, str], settings: Mapping[str, list[str]]
) -> None:
    """Raises UsageError for an unknown name, or a required one that is missing."""
    names = [field.name for field in fields]
    for name in common:
        if name not in names:
            raise UsageError(f"{job} takes no --{name}")
    for name in settings:
        if name not in names:
            raise UsageError(f"{job} has no setting {name!r}.{suggestion(name, names)}")
        if name in common:
            raise UsageError(f"{name} is given twice: by --{name} and by --set")
    missing = [f for f in fields if f.is_required and f.name not in common and f.name not in settings]
    if missing:
        wanted = [f"--{f.name}" if f.name in COMMON else f"--set {f.name}=…" for f in missing]
        raise UsageError(f"{job} needs {', '.join(wanted)}")


def suggestion(name: str, known: Sequence[str]) -> str:
    """ " Did you mean X?", or the possible names."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]}?"
    return f" There are: {', '.join(known)}" if known else ""


# --- the dataclass ------------------------------------------------------------------------------------


def build(kind: type[Any], common: Mapping[str, str], settings: Mapping[str, list[str]]) -> Any:
    """An instance with these values. Raises UsageError for a value that its field cannot have."""
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = dict(common)
    for name, texts in settings.items():
        values[name] = _value(name, hints[name], texts)
    return kind(**values)


def _value(name: str, hint: Any, texts: list[str]) -> object:
    kinds = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = kinds[0]
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        parts = [part.strip() for text in texts for part in text.split(",")]
        return tuple(_single(name, item, part) for part in parts if part)
    if len(texts) > 1:
        raise UsageError(f"{name} is given {len(texts)} times and has one value")
    return _single(name, hint, texts[0])


def _single(name: str, hint: Any, text: str) -> object:
    if hint is bool:
        if text.lower() not in _TRUTHS:
            raise UsageError(f"{name} is true or false, not {text!r}")
        return _TRUTHS[text.lower()]
    if hint is int:
        return _integer(name, text.strip())
    if hint is float:
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{name} is a number, not {text!r}") from None
    if typing.get_origin(hint) is typing.Literal:
        choices = [str(choice) for choice in typing.get_args(hint)]
        if text not in choices:
            raise UsageError(
                f"{name} is one of {', '.join(choices)}, not {text!r}.{suggestion(text, choices)}"
            )
        return text
    assert hint is str, f"the command line cannot make a {hint} for {name}"
    return text


def _integer(name: str, text: str) -> int:
    if _INTEGER.fullmatch(text):
        return int(text)
    words = name.split("_")
    if "bytes" in words and (size := _SIZE.fullmatch(text)):
        return _size(size)
    if "timestamp" in words or "time" in words:
        return _by_sdk(name, "parse_time", text)
    if words[-1] in {"ms", "seconds"}:
        milliseconds = _by_sdk(name, "parse_duration_ms", text)
        return milliseconds if words[-1] == "ms" else milliseconds // 1000
    raise UsageError(f"{name} is a whole number, not {text!r}")


def _size(match: re.Match[str]) -> int:
    unit = match[2]
    base = 1024 if "i" in unit else 1000
    return int(Decimal(match[1]) * base ** _SIZE_POWERS.get(unit[0], 0))


def _by_sdk(name: str, parser: str, text: str) -> int:
    """Parses times and durations as the command line `trovemq` does."""
    import typer

    times = importlib.import_module("trovemq.cli.times")
    try:
        value: int = getattr(times, parser)(text)
    except typer.BadParameter as error:
        raise UsageError(f"{name}: {error.message}") from None
    return value
