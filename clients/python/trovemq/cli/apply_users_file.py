"""The users of a file for `apply`, and the rules of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final

from trovemq.cli.file_checks import check_members, illegal

USER_MEMBERS: Final = ("name", "super", "enabled", "rules")
RULES_MAX: Final = 10_000  # of one user
ACTIONS: Final = (
    *("Pub", "Sub", "Create", "Update", "Delete", "Get", "List"),
    *("Read", "Command", "Backup", "Audit"),
)
KINDS: Final = ("Cluster", "Namespace", "Topic", "Group")
SOURCES_MAX: Final = 64  # of one rule
_ACCESS_KEY: Final = re.compile(r"[a-zA-Z0-9_.@-]{1,64}")
_RESOURCE_NAME: Final = re.compile(r"\*|[%|.+a-zA-Z0-9_-]{1,255}\*?")
_RULE_MEMBERS: Final = ("allow", "deny", "resource", "from")
_ALL: Final = frozenset(name.lower() for name in ACTIONS)
_EVERY_ACTION: Final = ("all", "*")


@dataclass(frozen=True, slots=True)
class WantedRule:
    """A rule of the file. Rules that mean the same have the same `key`."""

    allow: bool
    actions: str
    resource: str
    sources: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[bool, frozenset[str], str, frozenset[str]]:
        kind, separator, name = self.resource.partition(":")
        sources = frozenset(str(ip_network(source)) for source in self.sources)
        return self.allow, action_names(self.actions), f"{kind.lower()}{separator}{name}", sources

    def __str__(self) -> str:
        origin = f" from {' '.join(self.sources)}" if self.sources else ""
        return f"{'allow' if self.allow else 'deny'} {self.actions} on {self.resource}{origin}"


@dataclass(frozen=True, slots=True)
class WantedUser:
    """A user of the file. A field is None if the file does not set it."""

    name: str
    is_super: bool | None
    enabled: bool | None
    rules: tuple[WantedRule, ...]


def action_names(text: str) -> frozenset[str]:
    """The actions of a rule, in lower case; all of them for `All`."""
    names = [name.strip().lower() for name in text.split(",")]
    return _ALL if any(name in _EVERY_ACTION for name in names) else frozenset(names)


def parse_user(where: str, entry: dict[str, Any]) -> WantedUser:
    """An entry with a name and known members. Raises TroveError REQUEST_ILLEGAL."""
    if not _ACCESS_KEY.fullmatch(entry["name"]):
        raise illegal(f"{where}: a user's name has 1 to 64 letters, digits, '_', '.', '@' and '-'")
    for member in ("super", "enabled"):
        if not isinstance(entry.get(member, False), bool):
            raise illegal(f"{where}: {member} must be true or false")
    rules = entry.get("rules", [])
    if not isinstance(rules, list) or len(rules) > RULES_MAX:
        raise illegal(f"{where}: rules must be a list of at most {RULES_MAX}")
    parsed = tuple(_rule(f"{where}, rules[{index}]", rule) for index, rule in enumerate(rules))
    return WantedUser(entry["name"], entry.get("super"), entry.get("enabled"), parsed)


def _rule(where: str, rule: object) -> WantedRule:
    if not isinstance(rule, dict):
        raise illegal(f"{where} is not an object")
    check_members(where, rule, _RULE_MEMBERS)
    if ("allow" in rule) == ("deny" in rule):
        raise illegal(f"{where}: give allow or deny, with actions")
    allow = "allow" in rule
    actions = rule["allow" if allow else "deny"]
    if not isinstance(actions, str) or not all(map(_is_action, actions.split(","))):
        raise illegal(f"{where}: actions are All or {', '.join(ACTIONS)}, with commas between")
    resource = rule.get("resource")
    if not isinstance(resource, str) or not _is_resource(resource):
        raise illegal(
            f"{where}: resource must be '*', or one of {', '.join(KINDS)}, a colon and a name or '*'"
        )
    return WantedRule(allow, actions, resource, _sources(where, rule.get("from", [])))


def _is_action(name: str) -> bool:
    return name.strip().lower() in (*_ALL, *_EVERY_ACTION)


def _is_resource(text: str) -> bool:
    kind, separator, name = text.partition(":")
    is_name = _RESOURCE_NAME.fullmatch(name) is not None
    return text == "*" or (is_name and bool(separator) and kind.capitalize() in KINDS)


def _sources(where: str, sources: object) -> tuple[str, ...]:
    if not isinstance(sources, Sequence) or isinstance(sources, str):
        raise illegal(f"{where}: from must be a list of addresses and networks")
    if len(sources) > SOURCES_MAX:
        raise illegal(f"{where}: from has {len(sources)} entries, more than {SOURCES_MAX}")
    for source in sources:
        try:
            if not isinstance(source, str):
                raise TypeError
            ip_network(source)
        except (TypeError, ValueError):
            raise illegal(f"{where}: {str(source)[:60]!r} is neither an address nor a network") from None
    return tuple(sources)
