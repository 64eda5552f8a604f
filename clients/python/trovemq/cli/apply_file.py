"""The file that `apply` reads: YAML or JSON with the topics, groups and users to create or alter.

    {"topics": [{"name": "orders", "type": "NORMAL", "queues": 8, "options": {"deduplicate": "1h"}}, …],
     "groups": [{"name": "billing", "orderly": false, "maxRetries": 16, "backoffMillis": [1000, 5000]}, …],
     "users": [{"name": "alice", "super": false, "enabled": true, "rules": [
        {"allow": "Pub,Sub", "resource": "Topic:orders"},
        {"deny": "All", "resource": "Topic:secret*", "from": ["10.0.0.0/8"]}]}, …]}

Only `name` is required. A group without maxRetries, backoffMillis or orderly has the defaults. Instead of
backoffMillis it may have backoffInitialMillis, backoffMaxMillis and backoffMultiplier. The file has no
secrets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trovemq.cli.apply_users_file import USER_MEMBERS, WantedUser, parse_user
from trovemq.cli.file_checks import check_members, illegal, is_integer
from trovemq.cli.topics import MessageType

FILE_BYTES_MAX: Final = 16 << 20
ENTRIES_MAX: Final = 10_000
QUEUE_COUNT_MAX: Final = 1_024
RETRY_MAX_DEFAULT: Final = 16
RETRY_MAX_MAX: Final = 10_000
BACKOFF_STEPS_MAX: Final = 64
EXPONENTIAL_MEMBERS: Final = ("backoffInitialMillis", "backoffMaxMillis", "backoffMultiplier")
_KINDS: Final = ("topics", "groups", "users")
_MEMBERS: Final = {
    "topics": ("name", "type", "queues", "options"),
    "groups": (
        "name",
        "orderly",
        "maxRetries",
        "backoffMillis",
        *EXPONENTIAL_MEMBERS,
    ),
    "users": USER_MEMBERS,
}


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic in the file; None for values that the file does not name."""

    name: str
    message_type: str | None
    queue_count: int | None
    options: Mapping[str, str] = field(default_factory=dict)
    """The options that the file names."""


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """A group in the file, with the defaults filled in; without back-off it has RocketMQ's."""

    name: str
    orderly: bool = False
    retry_max: int = RETRY_MAX_DEFAULT
    backoff_ms: tuple[int, ...] = ()
    exponential: tuple[int, int, float] | None = None
    """Instead of the steps: the first delay, the longest one, and the factor."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The content of a file."""

    topics: tuple[WantedTopic, ...]
    groups: tuple[WantedGroup, ...]
    users: tuple[WantedUser, ...] = ()


def read_file(path: Path) -> bytes:
    """The content of the file, or of standard input (`-`). Raises TroveError REQUEST_ILLEGAL where it cannot
    be read or is too large."""
    try:
        with path.open("rb") if str(path) != "-" else nullcontext(sys.stdin.buffer) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise illegal(f"{path}: {error.strerror or error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise illegal(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
    return content


def parse_file(content: bytes) -> Wanted:
    """The content of the file. Raises TroveError REQUEST_ILLEGAL with the place of the fault."""
    document = _document(content)
    if not isinstance(document, dict):
        raise illegal('the file is not an object: {"topics": […], "groups": […]}')
    check_members("the file", document, _KINDS)
    topics = tuple(_topic(where, entry) for where, entry in _entries(document, "topics"))
    groups = tuple(_group(where, entry) for where, entry in _entries(document, "groups"))
    users = tuple(parse_user(where, entry) for where, entry in _entries(document, "users"))
    return Wanted(topics, groups, users)


def _document(content: bytes) -> object:
    """Parses a file that begins like JSON as JSON, which is faster and has its own error messages."""
    try:
        text = content.decode("utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            return json.loads(text, object_pairs_hook=_object)
        return _yaml(text)
    except json.JSONDecodeError as error:
        raise illegal(
            f"the file begins as JSON, and line {error.lineno}, column {error.colno} is none: {error.msg}"
        ) from None
    except (UnicodeDecodeError, RecursionError):
        raise illegal("the file must be YAML or JSON in UTF-8") from None


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    """Of two equal members JSON and YAML keep the last one: half of a rule would be lost."""
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise illegal(f"{twice[:100]!r} is there twice in one object")
    return found


def _yaml(text: str) -> object:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            found = super().construct_mapping(node, deep)
            if len(found) < len(node.value):
                raise illegal(f"{_where(node.start_mark)}a member is there twice in one object")
            return found

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few lines of them can stand for a million entries
                raise illegal(f"{_where(event.start_mark)}apply does not read aliases (*)")
        found: object = yaml.load(text, Loader=Loader)  # noqa: S506  it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise illegal(f"the file is not YAML: {_where(error.problem_mark)}{error.problem}") from None
    except (yaml.YAMLError, ValueError):
        raise illegal("the file is not YAML") from None
    return found


def _where(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _entries(document: dict[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    """(its place, the entry). Each entry has a name, and no name occurs twice."""
    entries = document.get(kind, [])
    if not isinstance(entries, list):
        raise illegal(f"{kind} is not a list")
    if len(entries) > ENTRIES_MAX:
        raise illegal(f"{kind} has {len(entries)} entries, more than {ENTRIES_MAX}")
    named: set[str] = set()
    found = []
    for index, entry in enumerate(entries):
        where = f"{kind}[{index}]"
        if not isinstance(entry, dict):
            raise illegal(f"{where} is not an object")
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            is_other = name is not None and not isinstance(name, str)
            quoted = f": {name!r} is no text, write it in quotes" if is_other else ""
            raise illegal(f"{where} has no name{quoted}")
        where = f"{where} ({name[:100]})"
        check_members(where, entry, _MEMBERS[kind])
        if name in named:
            raise illegal(f"{where} is there twice")
        named.add(name)
        found.append((where, entry))
    return found


def _topic(where: str, entry: dict[str, Any]) -> WantedTopic:
    message_type = entry.get("type")
    if message_type is not None and message_type not in list(MessageType):
        raise illegal(f"{where}: type {message_type!r} is none of {', '.join(MessageType)}")
    queues = entry.get("queues")
    if queues is not None and not is_integer(queues, 1, QUEUE_COUNT_MAX):
        raise illegal(f"{where}: queues must be a number from 1 to {QUEUE_COUNT_MAX}")
    options = entry.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(text, str) for text in options.values()):
        raise illegal(f"{where}: options must be an object of texts")
    return WantedTopic(entry["name"], message_type, queues, options)


def _group(where: str, entry: dict[str, Any]) -> WantedGroup:
    orderly = entry.get("orderly", False)
    if not isinstance(orderly, bool):
        raise illegal(f"{where}: orderly must be true or false")
    retry_max = entry.get("maxRetries", RETRY_MAX_DEFAULT)
    if not is_integer(retry_max, 0, RETRY_MAX_MAX):
        raise illegal(f"{where}: maxRetries must be a number from 0 to {RETRY_MAX_MAX}")
    backoff = entry.get("backoffMillis", [])
    if not isinstance(backoff, list) or not all(is_integer(ms, 0, 1 << 62) for ms in backoff):
        raise illegal(f"{where}: backoffMillis must be a list of milliseconds")
    if len(backoff) > BACKOFF_STEPS_MAX:
        raise illegal(f"{where}: backoffMillis has {len(backoff)} steps, more than {BACKOFF_STEPS_MAX}")
    return WantedGroup(entry["name"], orderly, retry_max, tuple(backoff), _exponential(where, entry))


def _exponential(where: str, entry: dict[str, Any]) -> tuple[int, int, float] | None:
    given = [name for name in EXPONENTIAL_MEMBERS if name in entry]
    if not given:
        return None
    if len(given) < len(EXPONENTIAL_MEMBERS) or "backoffMillis" in entry:
        raise illegal(f"{where}: give backoffMillis, or all of {', '.join(EXPONENTIAL_MEMBERS)}")
    first, last, factor = (entry[name] for name in EXPONENTIAL_MEMBERS)
    if not is_integer(first, 0, 1 << 62) or not is_integer(last, 0, 1 << 62):
        raise illegal(f"{where}: backoffInitialMillis and backoffMaxMillis must be milliseconds")
    if not isinstance(factor, int | float) or isinstance(factor, bool):
        raise illegal(f"{where}: backoffMultiplier must be a number")
    return first, last, float(factor)
