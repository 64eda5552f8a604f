"""Users, rules and quotas as the cluster's configuration has them: several actions become one change of the
state, so that no moment has a user with the rules of another one.

These keep no id. A local one whose key is in the table counts as made for that entry, so that the cluster's
settings and deletions win: a broker that joins keeps no user or rule that the cluster has otherwise. That
would be wrong for a topic or a group, whose messages and offsets a deletion destroys; of a user nothing is
lost that the table does not have. One whose key the table lacks has no id and is reported. So WITHHOLD is for
topics and groups alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from trovemq_broker.cluster_config.entries import Entry, Key, Kind
from trovemq_broker.cluster_config.local_tables import Failure
from trovemq_broker.cluster_config.reconcile import Action, LocalEntry
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.quotas import Quota, check_subject
from trovemq_broker.security.rules import Rule
from trovemq_broker.security.table import SUBJECT_PREFIX
from trovemq_daemon.users import User
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

SECURITY_KINDS = frozenset((Kind.USER, Kind.RULE, Kind.QUOTA))


def local_security(state: SecurityState, table: ConfigTable) -> Iterator[LocalEntry]:
    """All of the state."""
    for user in state.users.values():
        yield _local(table, Key(Kind.USER, user.access_key), user_texts(user), user_secrets(user))
    for rule in state.rules.values():
        yield _local(table, Key(Kind.RULE, rule_name(rule)), rule_texts(rule))
    for subject, quota in state.quotas.items():
        yield _local(table, Key(Kind.QUOTA, subject), quota_texts(quota))


def local_of(state: SecurityState, table: ConfigTable, key: Key) -> LocalEntry | None:
    if key.kind is Kind.USER:
        user = state.users.get(key.name)
        return None if user is None else _local(table, key, user_texts(user), user_secrets(user))
    if key.kind is Kind.RULE:
        rule = state.rules.get(int(key.name)) if key.name.isascii() and key.name.isdecimal() else None
        return None if rule is None else _local(table, key, rule_texts(rule))
    quota = state.quotas.get(key.name)
    return None if quota is None else _local(table, key, quota_texts(quota))


def _local(table: ConfigTable, key: Key, texts: dict[str, str], secrets: bytes = b"") -> LocalEntry:
    entry = table.get(key.kind, key.name)
    return LocalEntry(key, None if entry is None else entry.id, texts, secrets=secrets)


def state_after(state: SecurityState, actions: Sequence[Action]) -> tuple[SecurityState, list[Failure]]:
    """The state after all actions that can be done; `state` itself if nothing changes."""
    draft = _Draft(dict(state.users), dict(state.rules), state.next_rule, dict(state.quotas))
    failures = []
    for action in actions:
        try:
            if action.entry is None:
                draft.delete(action.key)
            else:
                draft.put(action.entry)
        except TroveError as error:
            failures.append(Failure(action, error))
    after = SecurityState(draft.users, draft.rules, draft.next_rule, draft.quotas)
    return (state if after == state else after), failures


def replaced_users(before: SecurityState, after: SecurityState) -> list[str]:
    """The names that belong to other users after a change: their former secrets are refused."""
    return [
        name
        for name, user in after.users.items()
        if (known := before.users.get(name)) is not None and known.salt != user.salt
    ]


@dataclass(slots=True)
class _Draft:
    """The next state."""

    users: dict[str, User]
    rules: dict[int, Rule]
    next_rule: int
    quotas: dict[str, Quota]

    def put(self, entry: Entry) -> None:
        """TroveError: the entry cannot be read."""
        if entry.kind is Kind.USER:
            self.users[entry.name] = user_of(entry.name, entry.settings, entry.secrets)
        elif entry.kind is Kind.RULE:
            rule = rule_of(entry.name, entry.settings)
            self.rules[rule.number] = rule
            self.next_rule = max(self.next_rule, rule.number + 1)
        elif check_subject(entry.name) == entry.name:
            self.quotas[entry.name] = quota_of(entry.name, entry.settings)
        else:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{entry.key}: not the form of a subject")

    def delete(self, key: Key) -> None:
        """Removes an entry; a user with its rules and its quota, which a later user of that name must not
        get."""
        if key.kind is Kind.USER:
            self.users.pop(key.name, None)
            self.rules = {number: rule for number, rule in self.rules.items() if rule.subject != key.name}
            self.quotas.pop(SUBJECT_PREFIX + key.name, None)
        elif key.kind is Kind.RULE:
            self.rules = {number: rule for number, rule in self.rules.items() if str(number) != key.name}
        else:
            self.quotas.pop(key.name, None)
