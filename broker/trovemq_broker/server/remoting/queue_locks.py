"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: which member of a group reads a queue in order.

Invariants
- A queue of a group has one holder, a client id. It holds the lock for LOCK_MS after it has asked last.
- A member that leaves, or whose connection is lost, holds none. (RocketMQ's broker keeps it for 60 s.)
- A lock is given when a record of it is durable (lock_records.py). So the next leader of a replica group, and
  this broker after a restart, know the holders: each continues at once, and others wait until the holder
  does not trust its lock any more.
- The leader of a replica group gives none while the leader before may still give some.
- There are LOCKS_MAX locks at most; expired ones go first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from trovemq_broker.server.remoting.lock_records import Holders, LockRecords
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.remoting.json_text import json_text

LOCK_MS: Final = 60_000
TRUST_MS: Final = 30_000
"""Time without a renewal after which a client does not trust a lock any more."""
LOCKS_MAX: Final = 262_144
EXPIRY_MS: Final = 1_000
QUEUES_MAX: Final = 16_384  # of one request
BODY_SIZE_MAX: Final = 4 << 20


class LockedQueue(msgspec.Struct, rename="camel", frozen=True):
    broker_name: str
    queue_id: int
    topic: str


class LockData(msgspec.Struct, rename="camel"):
    consumer_group: str
    client_id: str
    mq_set: list[LockedQueue] = []


_DATA: Final = msgspec.json.Decoder(LockData, strict=False)


_Key: TypeAlias = tuple[str, str, QueueId]
"""Group, topic, queue."""


class _Lock(NamedTuple):
    client_id: str
    until_ms: int


class QueueLocks:
    """`check(request, group)`: raises TroveError while this broker may not deliver in order, or the group may
    not have the client."""

    def __init__(
        self,
        clock_ms: Callable[[], EpochMs],
        check: Callable[[Request, str], None],
        records: LockRecords | None = None,
    ) -> None:
        self._clock_ms = clock_ms
        self._check = check
        self._records = records
        self._read: set[str] = set()
        """The groups whose recorded locks are known."""
        self._locks: dict[_Key, _Lock] = {}
        self._held: dict[str, dict[str, set[_Key]]] = {}
        """The locks by group and client id."""
        self._expired_ms = 0

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, request: Request) -> None:
        """The answer has the queues that the client holds now. TroveError of `check`: it asks again."""
        data = read_locks(request)
        group, now_ms = data.consumer_group, self._clock_ms()
        self._check(request, group)
        self._read_records(group, now_ms)
        held = [one for one in data.mq_set if self._take(data, one, now_ms)]
        if self._records is not None and self._records.lacks(group):
            request.run(self._answer_later(request, self._records, group, held))
        else:
            _answer(request, held)

    async def _answer_later(
        self, request: Request, records: LockRecords, group: str, held: list[LockedQueue]
    ) -> None:
        await records.save(group)
        _answer(request, held)

    def unlock(self, request: Request) -> None:
        data = read_locks(request)
        self._read_records(data.consumer_group, self._clock_ms())
        for one in data.mq_set:
            key = (data.consumer_group, one.topic, QueueId(one.queue_id))
            found = self._locks.get(key)
            if found is not None and found.client_id == data.client_id:
                self._remove(key)
        self._record_soon(data.consumer_group)
        request.answer()

    def release(self, group: str, client_id: str) -> None:
        """The member has left."""
        self._read_records(group, self._clock_ms())
        for key in list(self._held.get(group, {}).get(client_id, ())):
            self._remove(key)
        self._record_soon(group)

    def holds(self, group: str, topic: str, queue_id: QueueId, client_id: str) -> bool:
        found = self._locks.get((group, topic, queue_id))
        return found is not None and found.client_id == client_id and found.until_ms > self._clock_ms()

    def _take(self, data: LockData, one: LockedQueue, now_ms: EpochMs) -> bool:
        key = (data.consumer_group, one.topic, QueueId(one.queue_id))
        found = self._locks.get(key)
        if found is not None and found.client_id != data.client_id and found.until_ms > now_ms:
            return False
        if found is None and len(self._locks) >= LOCKS_MAX:
            self._expire(now_ms)
            if len(self._locks) >= LOCKS_MAX:
                raise TroveError(
                    errors.LIMIT_EXCEEDED, f"{LOCKS_MAX} queues are locked, the most there may be"
                )
        if found is None or found.client_id != data.client_id:
            if found is not None:
                self._remove(key)
            self._note_changed(data.consumer_group)
        self._hold(key, data.client_id, now_ms + LOCK_MS)
        return True

    def _hold(self, key: _Key, client_id: str, until_ms: int) -> None:
        self._held.setdefault(key[0], {}).setdefault(client_id, set()).add(key)
        self._locks[key] = _Lock(client_id, until_ms)

    # --- records ----------------------------------------------------------------------------------------
    def of_group(self, group: str) -> Holders:
        """The queues that each client holds."""
        return {
            client_id: [(topic, queue_id) for _, topic, queue_id in sorted(keys)]
            for client_id, keys in self._held.get(group, {}).items()
        }

    def _read_records(self, group: str, now_ms: EpochMs) -> None:
        if self._records is None or group in self._read or not self._records.has(group):
            return  # names of groups that do not exist have no limit
        self._read.add(group)
        for client_id, queues in self._records.holders(group).items():
            for topic, queue_id in queues:
                self._hold((group, topic, queue_id), client_id, now_ms + TRUST_MS)

    def _note_changed(self, group: str) -> None:
        if self._records is not None:
            self._records.note_changed(group)

    def _record_soon(self, group: str) -> None:
        """No client waits for the record: without it the others wait longer, once."""
        if self._records is not None and self._records.lacks(group):
            self._records.save_soon(group)

    def _remove(self, key: _Key) -> None:
        self._note_changed(key[0])
        clients, client_id = self._held[key[0]], self._locks.pop(key).client_id
        clients[client_id].discard(key)
        if not clients[client_id]:
            del clients[client_id]
        if not clients:
            del self._held[key[0]]

    def _expire(self, now_ms: EpochMs) -> None:
        """At most once in EXPIRY_MS: it looks at all locks."""
        if 0 <= now_ms - self._expired_ms < EXPIRY_MS:
            return
        self._expired_ms = now_ms
        for key in [key for key, one in self._locks.items() if one.until_ms <= now_ms]:
            self._remove(key)


def _answer(request: Request, held: list[LockedQueue]) -> None:
    request.answer(body=json_text({"lockOKMQSet": held}))


def read_locks(request: Request) -> LockData:
    """TroveError REQUEST_ILLEGAL, LIMIT_EXCEEDED."""
    if len(request.body) > BODY_SIZE_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"the body has more than {BODY_SIZE_MAX} bytes")
    try:
        data = _DATA.decode(request.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"the body cannot be read: {error}") from None
    if len(data.mq_set) > QUEUES_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"a request names {QUEUES_MAX} queues at most")
    return data
