"""The actions that make a broker's own tables equal to the cluster's, and the differences that stay.

The broker keeps the id of the cluster's entry with each topic, group, user, rule and quota. One without an id
was made before the broker joined, or by another program.

| the table has        | the broker has            | then                                                  |
|----------------------|---------------------------|-------------------------------------------------------|
| an entry             | nothing                   | CREATE (a topic: if it has queues on this broker)     |
| an entry             | the same id               | ALTER where settings, queues or secrets differ        |
| an entry             | no id, equal settings     | ADOPT: it gets the id                                 |
| an entry             | no id, other settings     | reported: CONFIG_SETTINGS_DIFFER; nothing changes     |
| an entry             | an earlier id             | DELETE, then CREATE: it is another one                |
| a deletion           | its id, or an earlier one | DELETE                                                |
| a deletion           | no id                     | reported as unlisted; nothing changes                 |
| nothing              | no id                     | reported as unlisted; nothing changes                 |
| nothing              | an id                     | WITHHOLD: kept on disk and not served                 |

An id that is not of the table's history counts as no id: it is of a change that a take-over has dropped, or
of the cluster in which the broker was before. Messages may lie in such a topic. WITHHOLD is for a broker that
was away until the deletion was forgotten.

Users, rules and quotas keep no id on a broker. One that the broker's table has, and that is missing in the
whole table which replaces it, was deleted, and its deletion is forgotten: it is deleted here before the table
is replaced, because it would keep its rights. One that was never in the table is unlisted, and keeps them; so
is one that the copy of a take-over lacks without a deletion, because the two copies contradict each other.

Invariant: no topic and no group is deleted because it is absent, and nothing that the table never had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trovemq_broker.cluster_config.entries import Entry, Key, Kind, Position
from trovemq_broker.cluster_config.table import ConfigTable, Head, Update
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_RIGHTS: Final = (Kind.RULE, Kind.USER, Kind.QUOTA)


class ActionKind(StrEnum):
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    ADOPT = "adopt"
    WITHHOLD = "withhold"


@dataclass(frozen=True, slots=True)
class LocalEntry:
    """An entry of the broker's own tables. `id`: of the cluster's entry that it was made for, or None.
    `queues`: of a topic."""

    key: Key
    id: Position | None
    settings: Mapping[str, str]
    queues: int = 0
    secrets: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Action:
    """`id`: of the entry that is made, or of the local one that is deleted. `entry`: as it is to be; None for
    DELETE and WITHHOLD. A topic gets entry.queues_on(broker) queues; 0: it takes no new messages here."""

    kind: ActionKind
    key: Key
    id: Position
    entry: Entry | None = None


@dataclass(slots=True)
class Plan:
    """Actions in the order in which they are to be done. `unlisted`: the broker has them, the table has not.
    `differing`: an error for each name that exists here with other settings."""

    actions: list[Action] = field(default_factory=list)
    unlisted: list[Key] = field(default_factory=list)
    differing: list[TroveError] = field(default_factory=list)


def plan(table: ConfigTable, broker: str, local: Iterable[LocalEntry]) -> Plan:
    """The plan for everything: at a start, and when a whole table came."""
    by_key = {entry.key: entry for entry in local}
    made = plan_of(table, broker, table, by_key)
    for key, entry in by_key.items():
        if table.get(key.kind, key.name) is None:
            _absent(made, entry, table.head)
    return made


def plan_of(
    table: ConfigTable, broker: str, entries: Iterable[Entry], local: Mapping[Key, LocalEntry]
) -> Plan:
    """The plan for these entries of the table alone, after changes of them."""
    made = Plan()
    for entry in entries:
        if entry.kind is Kind.BROKER:
            continue
        own = local.get(entry.key)
        if own is None:
            if not entry.deleted and (entry.kind is not Kind.TOPIC or entry.queues_on(broker)):
                made.actions.append(Action(ActionKind.CREATE, entry.key, entry.id, entry))
        elif own.id == entry.id:
            _same_id(made, entry, own, broker)
        elif own.id is None or not table.head.contains(own.id) or own.id.version > entry.id.version:
            _without_id(made, entry, own, broker)
        else:
            _earlier_id(made, entry, own.id, broker)
    return made


def forgotten_rights(table: ConfigTable, update: Update) -> list[Action]:
    """The deletions of users, rules and quotas that the table has, and the one that replaces it lacks."""
    head = update.head
    if (
        update.base is not None
        or head.cluster != table.head.cluster
        or not head.may_have_forgotten(table.head)
    ):
        return []
    kept = {entry.key for entry in update.entries}
    return [
        Action(ActionKind.DELETE, entry.key, entry.id)
        for entry in table
        if entry.kind in _RIGHTS
        and not entry.deleted
        and entry.key not in kept
        and head.contains(entry.id)  # its last change may be one that a take-over has dropped
    ]


def _absent(made: Plan, own: LocalEntry, head: Head) -> None:
    if own.id is None or not head.contains(own.id):
        made.unlisted.append(own.key)
    else:
        made.actions.append(Action(ActionKind.WITHHOLD, own.key, own.id))


def _without_id(made: Plan, entry: Entry, own: LocalEntry, broker: str) -> None:
    if entry.deleted:
        made.unlisted.append(own.key)
    elif _equal(entry, own, broker):
        made.actions.append(Action(ActionKind.ADOPT, entry.key, entry.id, entry))
    else:
        what = f"{own.key} exists on broker {broker} with other settings than in the cluster's configuration"
        made.differing.append(
            TroveError(errors.CONFIG_SETTINGS_DIFFER, what, kind=own.key.kind, name=own.key.name)
        )


def _same_id(made: Plan, entry: Entry, own: LocalEntry, broker: str) -> None:
    if entry.deleted:
        made.actions.append(Action(ActionKind.DELETE, entry.key, entry.id))
    elif not _equal(entry, own, broker):
        made.actions.append(Action(ActionKind.ALTER, entry.key, entry.id, entry))


def _earlier_id(made: Plan, entry: Entry, id_: Position, broker: str) -> None:
    made.actions.append(Action(ActionKind.DELETE, entry.key, id_))
    if not entry.deleted and (entry.kind is not Kind.TOPIC or entry.queues_on(broker)):
        made.actions.append(Action(ActionKind.CREATE, entry.key, entry.id, entry))


def _equal(entry: Entry, own: LocalEntry, broker: str) -> bool:
    queues = entry.queues_on(broker) if entry.kind is Kind.TOPIC else 0
    return (dict(entry.settings), queues, entry.secrets) == (dict(own.settings), own.queues, own.secrets)
