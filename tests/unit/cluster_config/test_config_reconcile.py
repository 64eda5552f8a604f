"""The actions on a broker's own tables, row by row of the module's table."""

from __future__ import annotations

import pytest

from tests.unit.cluster_config.config_parts import created, deleted, founded, make
from trovemq_broker.cluster_config.entries import (
    ChangeKind,
    ConfigChange,
    Entry,
    Generation,
    Key,
    Kind,
    Position,
)
from trovemq_broker.cluster_config.reconcile import ActionKind, LocalEntry, Plan, plan
from trovemq_proto import errors

FOREIGN = Position(Generation(1, "f" * 16), 3)
TOPIC = ConfigChange(ChangeKind.CREATE, Kind.TOPIC, "t", settings={"n": "1"}, placement={"a": 4})


def local(id_: Position | None, n: str = "1", queues: int = 4) -> LocalEntry:
    return LocalEntry(Key(Kind.TOPIC, "t"), id_, {"n": n}, queues)


def planned(*own: LocalEntry, changes: tuple[ConfigChange, ...] = (TOPIC,), end: bool = False) -> Plan:
    """The plan of broker a for a table with these changes, and the deletion of the first at the end."""
    owner = founded()
    made = [make(owner, change)[0] for change in changes]
    if end:
        make(owner, deleted(made[0]))
    return plan(owner._stored.table, "a", own)


def made_first() -> Entry:
    return make(founded(), TOPIC)[0]


ID = made_first().id


@pytest.mark.parametrize(
    ("own", "end", "actions"),
    [
        ((), False, [ActionKind.CREATE]),
        ((local(ID),), False, []),
        ((local(ID, n="2"),), False, [ActionKind.ALTER]),
        ((local(ID, queues=3),), False, [ActionKind.ALTER]),
        ((local(None),), False, [ActionKind.ADOPT]),
        ((local(FOREIGN),), False, [ActionKind.ADOPT]),
        ((local(FOREIGN),), True, []),
        ((local(Position(ID.generation, 1)),), False, [ActionKind.DELETE, ActionKind.CREATE]),
        ((local(ID),), True, [ActionKind.DELETE]),
        ((local(Position(ID.generation, 1)),), True, [ActionKind.DELETE]),
        ((), True, []),
    ],
)
def test_the_local_tables_become_equal(
    own: tuple[LocalEntry, ...], end: bool, actions: list[ActionKind]
) -> None:
    made = planned(*own, end=end)
    assert [action.kind for action in made.actions] == actions
    assert made.differing == []


@pytest.mark.parametrize("own", [local(None, n="2"), local(FOREIGN, n="2")])
def test_a_name_with_other_settings_is_reported_and_kept(own: LocalEntry) -> None:
    made = planned(own)
    assert made.actions == []
    assert [error.spec for error in made.differing] == [errors.CONFIG_SETTINGS_DIFFER]


def test_an_entry_that_the_table_lacks_is_reported_and_never_deleted() -> None:
    assert planned(local(None), end=True).unlisted == [Key(Kind.TOPIC, "t")]
    other = (created("other"),)
    assert planned(local(None), changes=other).unlisted == [Key(Kind.TOPIC, "t")]
    made = planned(local(ID), changes=other)
    assert [action.kind for action in made.actions] == [ActionKind.WITHHOLD]


def test_a_topic_without_queues_on_the_broker_is_not_created_there() -> None:
    elsewhere = ConfigChange(ChangeKind.CREATE, Kind.TOPIC, "t", placement={"b": 4})
    assert planned(changes=(elsewhere,)).actions == []
    group = created("g", Kind.GROUP)
    assert [action.key.kind for action in planned(changes=(group,)).actions] == [Kind.GROUP]


def test_a_broker_from_another_cluster_serves_none_of_its_topics() -> None:
    """A single broker founds a cluster, whose ids its topics have."""
    made = planned(local(FOREIGN), changes=(created("other"),))
    assert made.actions == []
    assert made.unlisted == [Key(Kind.TOPIC, "t")]
