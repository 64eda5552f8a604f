"""The invariants of unique keys and atomic transactions in the files that a script left (script_check.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import pytest

from tests.durability.engine_script import QUEUES, Ledger
from tests.durability.tree_script import ONCE, PAIRS, TreeScript
from tests.support.engine import read_queue
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import Message
from trovemq_store.engine.message_store import MessageStore

LOT: Final = 16


def check_transactions_whole(script: TreeScript, ledger: Ledger, *, killed: bool) -> set[str]:
    """The transactions that count. Those that are there have all their messages, each once, and the others
    have none; some have gone with their segment."""
    store, seen = script.store, defaultdict(list)
    for message in pair_messages(store):
        seen[message.properties["TROVEMQ_TX_ID"]].append((message.topic, message.queue_id, message.body))
    there = {name for name in ledger.tried if name in script.commits.ends}
    for number, (name, place) in enumerate(ledger.committed.items()):
        if place >= store.min_offset and (killed or number < ledger.durable.committed):
            assert name in there, f"transaction {name} is lost"
    for name in there:
        assert sorted(seen.pop(name)) == sorted(ledger.tried[name].messages), name
    assert not seen, "a part of a transaction is seen"
    return there | {name for name, place in ledger.committed.items() if place < store.min_offset}


def pair_messages(store: MessageStore) -> Iterator[Message]:
    for topic in PAIRS:
        for queue_id in range(QUEUES):
            yield from read_queue(store, topic, QueueId(queue_id))


def once_places(store: MessageStore) -> dict[str, PhysicalOffset]:
    """Unique key -> place of the messages of ONCE, of which no two are the same."""
    messages = [
        message for queue_id in range(QUEUES) for message in read_queue(store, ONCE, QueueId(queue_id))
    ]
    found = {message.body.decode(): message.physical_offset for message in messages}
    assert len(found) == len(messages), "a duplicate was accepted"
    return found


def check_unique(script: TreeScript, ledger: Ledger, *, killed: bool) -> None:
    """Acknowledged messages are there once. Sent again, all that is there is a duplicate, and the rest is
    stored: at the end everything is there once."""
    store = script.store
    found, begin = once_places(store), store.min_offset
    for number, (key, place) in enumerate(ledger.once.items()):
        if place >= begin and (killed or number < ledger.durable.once):
            assert found.get(key) == place, f"{key} is lost"
    assert found.keys() <= set(ledger.once_tried), "nothing comes from nowhere"
    gone = {key for key, place in ledger.once.items() if place < begin}
    again = [key for key in ledger.once_tried if key not in gone]
    for at in range(0, len(again), LOT):
        keys = again[at : at + LOT]
        result = script.send_once(keys)
        there = {index: found[key] for index, key in enumerate(keys) if key in found}
        assert {index: place.physical_offset for index, place in result.duplicates.items()} == there
    if known := [key for key in again if key in found]:
        for by in ({"numbers": False}, {"named": False}):
            assert len(script.send_once(known, **by).duplicates) == len(known), (
                "known by one of the two alone"
            )
    script.sync()
    assert once_places(store).keys() == set(again)
    check_commits_again(script, ledger)


def check_commits_again(script: TreeScript, ledger: Ledger) -> None:
    """A commit of a known transaction is answered again; its unique keys are known, from any sender."""
    end = script.store.end_offset
    for name in [name for name in ledger.tried if name in script.commits.ends]:
        assert script.commit(name, [], []).repeated
        with pytest.raises(TroveError) as refused:
            script.commit(f"{name}-again", ledger.tried[name].messages, [])
        assert refused.value.spec is errors.TRANSACTION_DUPLICATE
    assert script.store.end_offset == end
