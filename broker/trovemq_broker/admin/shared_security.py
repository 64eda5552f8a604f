"""Changes of users, rules and quotas in the cluster's configuration, by the functions of security/changes.py.

The table's entries are read as one SecurityState; a function's changes of it become changes of the
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from trovemq_broker.admin.config_texts import (
    quota_of,
    quota_texts,
    rule_name,
    rule_of,
    rule_texts,
    user_of,
    user_secrets,
    user_texts,
)
from trovemq_broker.cluster_config.entries import ORIGIN, ChangeKind, ConfigChange, Entry, Kind, Position
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX
from trovemq_broker.cluster_config.shared import SharedConfig
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.quotas import Quota
from trovemq_broker.security.rules import Rule
from trovemq_daemon.users import User

_KINDS: Final = (Kind.USER, Kind.RULE, Kind.QUOTA)


class SharedSecurity:
    """The users, rules and quotas of the cluster's configuration. `next_rule()`: the number of this broker's
    own next rule; rules that it had before the cluster may have had the numbers below it."""

    def __init__(self, config: SharedConfig, next_rule: Callable[[], int]) -> None:
        self._config = config
        self._next_rule = next_rule
        self._state = _DecodedState()

    async def apply(self, make: Callable[[SecurityState], SecurityState]) -> SecurityState:
        """Changes the table as `make` changes the state, and returns the state after that. More changes than
        one write may have are made by several: allowing rules are deleted before denying ones, and a user
        after all of its rules. Raises the errors of `make` and of SharedConfig.change."""
        made: list[SecurityState] = []
        left: list[bool] = []

        def changes(table: ConfigTable) -> Sequence[ConfigChange]:
            before = self._state.of(table, self._next_rule())
            made.append(make(before))
            found = list(_changes(before, made[-1], table))
            left.append(len(found) > CHANGES_AT_ONCE_MAX)
            return found[:CHANGES_AT_ONCE_MAX]

        await self._config.change(changes)
        while left[-1]:
            await self._config.change(changes)
        return made[-1]


class _DecodedState:
    """The state of the table, of which only the entries that have changed since the last call are read."""

    def __init__(self) -> None:
        self._known: Position = ORIGIN
        self._users: dict[str, User] = {}
        self._rules: dict[int, Rule] = {}
        self._quotas: dict[str, Quota] = {}

    def of(self, table: ConfigTable, next_rule: int) -> SecurityState:
        head = table.head
        if head.generation != self._known.generation or head.horizon > self._known.version:
            # of another history, or a deletion is forgotten that was not read
            self._known, self._users, self._rules, self._quotas = ORIGIN, {}, {}, {}
        for entry in table.since(self._known.version):
            if entry.kind in _KINDS:
                self._take(entry)
        self._known = head.position
        number = max(next_rule, table.rule_number_max() + 1)
        return SecurityState(dict(self._users), dict(self._rules), number, dict(self._quotas))

    def _take(self, entry: Entry) -> None:
        name = entry.name
        if entry.kind is Kind.USER:
            _put(self._users, name, None if entry.deleted else user_of(name, entry.settings, entry.secrets))
        elif entry.kind is Kind.RULE:
            _put(self._rules, int(name), None if entry.deleted else rule_of(name, entry.settings))
        else:
            _put(self._quotas, name, None if entry.deleted else quota_of(name, entry.settings))


def _put(values: dict[Any, Any], name: object, value: object) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def _changes(before: SecurityState, after: SecurityState, table: ConfigTable) -> Iterator[ConfigChange]:
    """New users before their rules, users that are deleted last."""
    for name, user in after.users.items():
        if before.users.get(name) is not user:
            yield _change(table, Kind.USER, name, user_texts(user), user_secrets(user))
    for number, rule in after.rules.items():
        if before.rules.get(number) is not rule:
            yield _change(table, Kind.RULE, rule_name(rule), rule_texts(rule))
    for subject, quota in after.quotas.items():
        if before.quotas.get(subject) != quota:
            yield _change(table, Kind.QUOTA, subject, quota_texts(quota))
    gone = [rule for number, rule in before.rules.items() if number not in after.rules]
    for rule in sorted(gone, key=lambda rule: not rule.allow):
        yield _change(table, Kind.RULE, rule_name(rule), None)
    for subject in before.quotas.keys() - after.quotas.keys():
        yield _change(table, Kind.QUOTA, subject, None)
    for name in before.users.keys() - after.users.keys():
        yield _change(table, Kind.USER, name, None)


def _change(
    table: ConfigTable, kind: Kind, name: str, settings: Mapping[str, str] | None, secrets: bytes = b""
) -> ConfigChange:
    """`settings` None: it is deleted."""
    entry = table.live(kind, name)
    seen = None if entry is None else entry.version
    if settings is None:
        return ConfigChange(ChangeKind.DELETE, kind, name, seen)
    action = ChangeKind.CREATE if entry is None else ChangeKind.ALTER
    return ConfigChange(action, kind, name, seen, settings, secrets=secrets)
