"""Compares a store that was opened after a crash with the ledger of its user (see oracle.py)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.durability.oracle import READERS, SHARED_KEYS, TOPIC, History, Ledger, Sent, content
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import Message, decode_message
from trovemq_store.engine.message_store import MessageStore

OLD_KEYS_SAMPLE: Final = 40
CATCH_UP_BYTES: Final = 1 << 20
CATCH_UP_STEPS_MAX: Final = 64


class StoreCheck:
    """One check, in the process that has just opened the store and has written nothing yet. `after_power_cut`
    with async flush: unsynced messages may be gone. Raises AssertionError."""

    def __init__(
        self,
        store: MessageStore,
        model: ConsumerState,
        history: History,
        ledger: Ledger,
        *,
        after_power_cut: bool,
    ) -> None:
        self._store = store
        self._model = model
        self._history = history
        self._ledger = ledger
        self._may_lose = after_power_cut and store.settings.flush_mode == "async"
        self._found: dict[str, list[Message]] = defaultdict(list)
        self._by_queue: dict[tuple[str, int], list[Message]] = defaultdict(list)

    def run(self, source: random.Random) -> None:
        """Everything; the findings that later checks need go into the ledger."""
        assert not self._store.recovery.damages, self._store.recovery.damages
        assert not self._store.recovery.gaps, self._store.recovery.gaps
        assert self._store.min_offset in self._history.trims, "the log begins where it was not trimmed"
        self._read_log()
        self._cut_what_may_be_lost()
        self._check_queues()
        self._check_contents()
        waiting, open_halves = self._waiting(), self._open_halves()
        for sent in list(self._history.sent.values()):
            self._check_message(sent, waiting, open_halves)
        self._check_keys(source)
        self._check_offsets()

    # --- the log ------------------------------------------------------------------------------------
    def _read_log(self) -> None:
        last_timestamp = 0
        for _, records, alive in self._store.scan(self._store.min_offset, self._store.visible_offset):
            assert alive is None, "no topic was deleted"
            for message in records.messages():
                assert message.store_timestamp >= last_timestamp, "store times go back"
                last_timestamp = message.store_timestamp
                self._by_queue[message.topic, message.queue_id].append(message)
                if message.topic == TOPIC:
                    self._found[message.unique_key or ""].append(message)

    def _cut_what_may_be_lost(self) -> None:
        end, history = self._store.recovery.end, self._history
        behind = [
            sent.identifier
            for sent in history.sent.values()
            if sent.acknowledged and sent.physical_offset >= end
        ]
        assert not behind or self._may_lose, f"acknowledged and lost: {behind}"
        assert end >= history.synced, f"the log ends at {end}, and was synced up to {history.synced}"
        self._note("cut", end)
        self._note("synced", self._store.flushed_offset)

    def _note(self, *entry: object) -> None:
        self._ledger.add(*entry)
        self._history.add(str(entry[0]), *entry[1:])

    def _check_queues(self) -> None:
        """Each queue has exactly the records of the log, in its order, under offsets without gaps."""
        queues = self._store.consume_queues
        names = {(queue.topic, queue.queue_id) for topic in queues.topics() for queue in queues.queues(topic)}
        assert names >= set(self._by_queue), "a queue is missing"
        for name in sorted(names):
            queue, messages = queues.get(*name), self._by_queue[name]
            assert queue is not None
            offsets = [message.queue_offset for message in messages]
            assert offsets == list(range(queue.min_offset, queue.max_offset)), f"{name} has gaps: {offsets}"
            units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
            assert units["physical_offset"].tolist() == [message.physical_offset for message in messages]
            assert units["size"].tolist() == [message.store_size for message in messages]

    # --- messages -----------------------------------------------------------------------------------
    def _check_contents(self) -> None:
        for identifier, messages in self._found.items():
            sent = self._history.sent.get(identifier)
            assert sent is not None, f"{identifier!r} is there and was never sent, or was gone before"
            wanted = content(identifier)
            for message in messages:
                assert self._store.record_at(message.physical_offset) is not None, "its CRC is right"
                assert message.body == wanted.body, f"{identifier} has another body"
                assert message.keys == wanted.keys, f"{identifier} has other keys"
                assert message.tags == wanted.tag, f"{identifier} has another tag"
                assert message.queue_id == sent.queue_id, f"{identifier} lies in another queue"
                assert message.store_timestamp >= sent.deliver_ms, f"{identifier} was delivered early"

    def _waiting(self) -> dict[str, EpochMs]:
        """Unique key -> delivery time of the delayed messages that wait."""
        waiting = {}
        for timer in self._model.timers.pending(TOPIC):
            queue = self._store.consume_queues.get(timer.topic, timer.queue_id)
            assert queue is not None
            message = self._read(queue.unit(timer.queue_offset)[0])
            assert message.unique_key, "a delayed message has its key"
            waiting[message.unique_key] = timer.deliver_ms
            assert message.body == content(message.unique_key).body
        return waiting

    def _open_halves(self) -> set[str]:
        halves = self._model.transactions.snapshot().open
        for half in halves:
            assert self._read(half.physical_offset).body == content(half.transaction_id).body
        return {half.transaction_id for half in halves}

    def _read(self, physical_offset: int) -> Message:
        record = self._store.record_at(PhysicalOffset(physical_offset))
        assert record is not None, f"no record at {physical_offset}"
        return decode_message(record)

    def _check_message(self, sent: Sent, waiting: dict[str, EpochMs], open_halves: set[str]) -> None:
        identifier, found = sent.identifier, self._found.get(sent.identifier, [])
        outstanding = identifier in waiting or identifier in open_halves
        if sent.acknowledged and not self._expired(sent.physical_offset):
            self._read(sent.physical_offset)
        if sent.kind == "plain":
            assert len(found) <= 1, f"{identifier} was sent once and is there {len(found)} times"
            if sent.acknowledged and not self._expired(sent.physical_offset):
                assert found, f"{identifier} was acknowledged and is lost"
                place = found[0].physical_offset, found[0].queue_offset
                assert place == (sent.physical_offset, sent.queue_offset), f"{identifier} has moved"
        elif sent.kind == "delayed":
            self._check_delayed(sent, found, waiting)
        else:
            self._check_half(sent, found, identifier in open_halves)
        never_acknowledged = not sent.acknowledged and not sent.ended and sent.place < 0
        if never_acknowledged and not found and not outstanding:
            self._note("gone", [identifier])

    def _expired(self, physical_offset: int) -> bool:
        return 0 <= physical_offset < self._store.min_offset

    def _check_delayed(self, sent: Sent, found: list[Message], waiting: dict[str, EpochMs]) -> None:
        identifier = sent.identifier
        if identifier in waiting:
            assert waiting[identifier] == sent.deliver_ms, f"{identifier} waits for another time"
        elif sent.acknowledged and not found:
            assert self._expired(sent.place), f"the delayed {identifier} was acknowledged and is lost"
        if found and found[-1].physical_offset > sent.place:
            self._note("seen", identifier, found[-1].physical_offset)

    def _check_half(self, sent: Sent, found: list[Message], is_open: bool) -> None:
        identifier = sent.identifier
        assert len(found) <= 1, f"{identifier} was committed {len(found)} times"
        if found:
            assert sent.end_tried is True, f"{identifier} is there and was not committed"
            assert not is_open, f"{identifier} was committed and is still open"
            if not sent.ended:
                self._note("ended", identifier, True, found[0].physical_offset)
        if sent.ended and sent.end_tried:
            assert found or self._expired(sent.place), f"the commit of {identifier} is lost"
        if sent.ended:
            assert not is_open, f"{identifier} has ended and is open"
        elif sent.acknowledged and sent.end_tried is None:
            assert is_open, f"the half message {identifier} was acknowledged and is lost"
        elif sent.acknowledged and sent.end_tried:
            assert found or is_open, f"the half message {identifier} is lost in its commit"

    # --- keys and offsets ---------------------------------------------------------------------------
    def _check_keys(self, source: random.Random) -> None:
        """Before the index has caught up (the daemon lets it, in steps) and after: all answers are whole."""
        identifiers = sorted(self._found)
        if not identifiers:
            return
        for identifier in source.sample(identifiers, min(OLD_KEYS_SAMPLE, len(identifiers))):
            self._ask(content(identifier).keys[0], [identifier], KeyType.KEY)
        steps = 0
        while self._store.lagging:
            steps += 1
            assert steps <= CATCH_UP_STEPS_MAX, "the index does not catch up"
            self._store.catch_up(CATCH_UP_BYTES)
        life = max((int(identifier.split(".")[0]) for identifier in identifiers), default=0)
        recent = [identifier for identifier in identifiers if identifier.startswith(f"{life}.")]
        older = source.sample(identifiers, min(OLD_KEYS_SAMPLE, len(identifiers)))
        for identifier in recent + older:
            self._ask(identifier, [identifier], KeyType.UNIQUE)
        for number in range(SHARED_KEYS):
            key = f"shared-{number}"
            self._ask(key, [one for one in identifiers if content(one).keys[1] == key], KeyType.KEY)

    def _ask(self, key: str, identifiers: list[str], key_type: KeyType) -> None:
        scanned = sorted(message.physical_offset for one in identifiers for message in self._found[one])
        answered = sorted(self._answer(KeyQuery(TOPIC, key, key_type)))
        assert answered == scanned, f"key {key}: the index says {answered}, the log {scanned}"

    def _answer(self, query: KeyQuery) -> Iterator[int]:
        page = None
        for page in query_pages(self._store, query, messages_max=1 << 20):
            yield from page.physical_offsets
        assert page is not None
        assert page.complete, f"the answer for {query.key} ends early"

    def _check_offsets(self) -> None:
        for queue_id, tried in self._history.reach_tried.items():
            stored = self._store.offsets.get(READERS, TOPIC, QueueId(queue_id)) or 0
            least = self._history.reached.get(queue_id, 0)
            assert least <= stored <= tried, f"queue {queue_id}: {stored}, committed {least} to {tried}"
