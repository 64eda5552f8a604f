"""Makes a job's arguments from the command line: `--store`, `--archive` … and `--set NAME=VALUE`.

Every job has one frozen dataclass of plain values; its fields are the names that `--set` knows, and the text
that follows a field is its documentation. Names, types and texts are read from the job's source, so that help
and most errors of usage need neither Spark nor the job's module.

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

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

COMMON: Final = ("store", "server", "archive", "out")
"""Fields that have their own command-line options."""

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([KMGT]i?B|B)", re.ASCII)
_SIZE_POWERS: Final = {"K": 1, "M": 2, "G": 3, "T": 4}
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.LShift: operator.lshift,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
}
_INTEGER: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class UsageError(Exception):
    """The command line is wrong; the text names the fault and the right form."""


@dataclass(frozen=True, slots=True)
class FieldHelp:
    """A field as declared in the source: `default` is "" if a value is required."""

    name: str
    type: str
    default: str
    text: str


# --- the arguments of a job ---------------------------------------------------------------------------


def read_fields(module: str) -> list[FieldHelp]:
    """The fields of the job's dataclass (the last class whose name ends with Arguments), without importing
    it. Raises UsageError if the job is not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(f"this installation has no {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = [node for node in classes if node.name.endswith("Arguments")]
    return _fields_of(found[-1]) if found else []


def _fields_of(node: ast.ClassDef) -> list[FieldHelp]:
    fields = []
    for place, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(statement.annotation):
            continue
        default = "" if statement.value is None else ast.unparse(statement.value)
        text = _text_of(node.body[place + 1]) if place + 1 < len(node.body) else ""
        fields.append(FieldHelp(statement.target.id, ast.unparse(statement.annotation), default, text))
    return fields


def _text_of(statement: ast.stmt) -> str:
    """The text of a bare string, on one line; else ""."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def default_of(field: FieldHelp, module: str) -> Any:
    """The field's default value. It may name a constant of the module, or of a module that it imports; none
    of them is imported."""
    return _value_of(ast.parse(field.default, mode="eval").body, module)


def _value_of(node: ast.expr, module: str) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value_of(node.left, module), _value_of(node.right, module))
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and node.id in [alias.name for alias in statement.names]:
            return _value_of(node, str(statement.module))
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == node.id:
            assert statement.value is not None, node.id
            return _value_of(statement.value, module)
    raise ValueError(f"{module} has no constant {node.id}")


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
    missing = [f for f in fields if not f.default and f.name not in common and f.name not in settings]
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


def arguments_class(module: types.ModuleType) -> type[Any]:
    """The job's dataclass."""
    found = [
        value
        for name, value in vars(module).items()
        if name.endswith("Arguments") and dataclasses.is_dataclass(value) and isinstance(value, type)
    ]
    own = [value for value in found if value.__module__ == module.__name__]
    assert own, f"{module.__name__} has no dataclass of arguments"
    return own[-1]


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
