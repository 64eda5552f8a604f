"""A topic or a group as the cluster's configuration has it, made from the one that this broker has.

| the cluster's entry                          | the topic here                                              |
|----------------------------------------------|-------------------------------------------------------------|
| has more queues on this broker               | gets them                                                   |
| has fewer                                    | keeps all; only the first ones take new messages            |
| has none                                     | `unplaced`: without write; nothing is deleted               |
| is missing, although the topic has its id    | `withheld`: neither read nor written; kept on disk          |

A withheld group may not consume. What the configuration does not know (config_texts.py) stays as it is. The
id of the entry is written in the same change (config_marks.py), so that no crash leaves another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trovemq_broker.admin.config_texts import OPTION_NAMES, group_of, group_texts, topic_of, topic_texts
from trovemq_broker.cluster_config.entries import Entry, Generation, Key, Kind, Position
from trovemq_broker.cluster_config.reconcile import LocalEntry
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.config_marks import (
    UNPLACED,
    WITHHELD,
    ConfigId,
    Unserved,
    config_id,
    is_withheld,
    marked,
    unserved,
)
from trovemq_store.topics.creators import CREATOR_ATTRIBUTE
from trovemq_store.topics.subscription_groups import MADE_BY_USE_ATTRIBUTE, SubscriptionGroup
from trovemq_store.topics.topic_options import OFF
from trovemq_store.topics.topics import PERM_WRITE, TopicConfig


def id_of(attributes: Mapping[str, str]) -> Position | None:
    """The id of the cluster's entry that the topic or group was made for."""
    found = config_id(attributes)
    return None if found is None else Position(Generation(found.number, found.mark), found.version)


def _marks_id(position: Position) -> ConfigId:
    return ConfigId(*position.generation, position.version)


# --- topics -----------------------------------------------------------------------------------------------
def local_topic(config: TopicConfig) -> LocalEntry:
    """Its queues are those that take new messages."""
    queues = 0 if _is_unplaced(config) else config.write_queue_count
    return LocalEntry(Key(Kind.TOPIC, config.name), id_of(config.attributes), topic_texts(config), queues)


def _is_unplaced(config: TopicConfig) -> bool:
    state = unserved(config.attributes)
    return state is not None and state.reason == UNPLACED


def created_topic(entry: Entry, queues: int, placed: int | None, present: TopicConfig | None) -> TopicConfig:
    """`placed`: the version of the table if the cluster has had the topic for a while. TroveError
    TOPIC_EXISTS if a topic is there that was not made for the entry, and those of topic_of()."""
    if present is None:
        assert queues > 0, "a topic without queues here is not created"
        made = topic_of(entry.name, entry.settings, queues)
        attributes = marked(made.attributes, _marks_id(entry.id), placed=placed)
        return replace(made, attributes=attributes)
    if id_of(present.attributes) != entry.id:
        raise TroveError(errors.TOPIC_EXISTS, f"topic {entry.name} was made here meanwhile", topic=entry.name)
    return altered_topic(entry, queues, present)


def altered_topic(entry: Entry, queues: int, present: TopicConfig | None) -> TopicConfig:
    """Also for a topic without an id, which the entry adopts. TroveError TOPIC_NOT_FOUND, TOPIC_EXISTS, and
    those of topic_of()."""
    if present is None:
        raise TroveError(errors.TOPIC_NOT_FOUND, f"topic {entry.name} is not here", topic=entry.name)
    wanted = topic_of(entry.name, entry.settings)
    state = None if queues else Unserved(UNPLACED, wanted.perm)
    placed = entry.version.version if queues and _is_unplaced(present) else None
    attributes = _with_creator(present.attributes, wanted.attributes)
    made = replace(
        present,
        queue_count=max(present.queue_count, queues),
        write_queue_count=queues or present.write_queue_count,
        perm=wanted.perm if queues else wanted.perm & ~PERM_WRITE,
        attributes=marked(attributes, _marks_id(entry.id), state, placed),
    ).with_message_type(wanted.message_type)
    return made.with_options({name: entry.settings.get(name, OFF) for name in OPTION_NAMES})


def withheld_topic(name: str, id_: Position, present: TopicConfig | None) -> TopicConfig:
    """TroveError TOPIC_NOT_FOUND, TOPIC_EXISTS."""
    if present is None:
        raise TroveError(errors.TOPIC_NOT_FOUND, f"topic {name} is not here", topic=name)
    if id_of(present.attributes) != id_:
        raise TroveError(errors.TOPIC_EXISTS, f"topic {name} was made here meanwhile", topic=name)
    if is_withheld(present.attributes):
        return present
    state = unserved(present.attributes)
    kept = Unserved(WITHHELD, present.perm if state is None else state.value)
    return replace(present, perm=0, attributes=marked(present.attributes, _marks_id(id_), kept))


# --- groups -----------------------------------------------------------------------------------------------
def local_group(group: SubscriptionGroup) -> LocalEntry:
    return LocalEntry(Key(Kind.GROUP, group.name), id_of(group.attributes), group_texts(group))


def created_group(entry: Entry, present: SubscriptionGroup | None) -> SubscriptionGroup:
    """One that its first use made has nothing but defaults: the entry is put over it. TroveError
    GROUP_EXISTS if another group is there, and those of group_of()."""
    if present is not None and not present.made_by_use and id_of(present.attributes) != entry.id:
        raise TroveError(errors.GROUP_EXISTS, f"group {entry.name} was made here meanwhile", group=entry.name)
    return _group_after(entry, {} if present is None else present.attributes)


def altered_group(entry: Entry, present: SubscriptionGroup | None) -> SubscriptionGroup:
    """Also for a group without an id, which the entry adopts. TroveError GROUP_NOT_FOUND, and those of
    group_of()."""
    if present is None:
        raise TroveError(errors.GROUP_NOT_FOUND, f"group {entry.name} is not here", group=entry.name)
    return _group_after(entry, present.attributes)


def _group_after(entry: Entry, attributes: Mapping[str, str]) -> SubscriptionGroup:
    wanted = group_of(entry.name, entry.settings)
    after = marked(_with_creator(attributes, wanted.attributes), _marks_id(entry.id))
    after.pop(MADE_BY_USE_ATTRIBUTE, None)
    return replace(wanted, attributes=after)


def withheld_group(name: str, id_: Position, present: SubscriptionGroup | None) -> SubscriptionGroup:
    """TroveError GROUP_NOT_FOUND, GROUP_EXISTS."""
    if present is None:
        raise TroveError(errors.GROUP_NOT_FOUND, f"group {name} is not here", group=name)
    if id_of(present.attributes) != id_:
        raise TroveError(errors.GROUP_EXISTS, f"group {name} was made here meanwhile", group=name)
    if is_withheld(present.attributes):
        return present
    kept = Unserved(WITHHELD, int(present.consume_enable))
    return replace(present, consume_enable=False, attributes=marked(present.attributes, _marks_id(id_), kept))


def _with_creator(attributes: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    after = {name: text for name, text in attributes.items() if name != CREATOR_ATTRIBUTE}
    if CREATOR_ATTRIBUTE in wanted:
        after[CREATOR_ATTRIBUTE] = wanted[CREATOR_ATTRIBUTE]
    return after
