"""The holders of a group's queue locks as an attribute of the group, which is a record of the log.

Renewals write nothing: a record has the holder, and not until when. Changes that arrive during a write share
the next one. A group whose text is longer than TEXT_SIZE_MAX, some thousand queues, has no record: its locks
are in memory alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.topics.subscription_groups import QUEUE_LOCKS_ATTRIBUTE

TEXT_SIZE_MAX: Final = 32 << 10
Holders: TypeAlias = Mapping[str, Sequence[tuple[str, QueueId]]]
"""The (topic, queue) pairs that each client holds, by client id."""


class LockRecords:
    """For use on the event loop only. `present` is to be set: returns the holders of a group."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.present: Callable[[str], Holders] = lambda _group: {}
        self._changed: set[str] = set()
        self._writing: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def has(self, group: str) -> bool:
        """Whether there is such a group."""
        return group in self._core.groups

    def holders(self, group: str) -> Holders:
        """As they were recorded last."""
        found = self._core.groups.get(group)
        return {} if found is None else _holders_of(found.attributes.get(QUEUE_LOCKS_ATTRIBUTE, ""))

    def note_changed(self, group: str) -> None:
        """A queue of the group has another holder, or none any more."""
        if group in self._core.groups:
            self._changed.add(group)

    def lacks(self, group: str) -> bool:
        """Whether a change is not recorded yet."""
        return group in self._changed or group in self._writing

    async def save(self, group: str) -> None:
        """The present holders are durable when this returns. TroveError GROUP_NOT_FOUND, DISK_FULL,
        STORE_FAILED, and those of a replica group: then they are still to be recorded."""
        writing = self._writing.setdefault(group, asyncio.Lock())
        try:
            async with writing:
                if group in self._changed:
                    await self._write(group)
        finally:
            if group not in self._changed and not writing.locked():
                self._writing.pop(group, None)

    async def _write(self, group: str) -> None:
        self._core.appender.check_accepting()  # a stop closes the connections of all members
        self._changed.discard(group)
        text = _text_of(self.present(group))
        kept = text if text and len(text) <= TEXT_SIZE_MAX else None
        try:
            await self._core.group_changes.mark(group, QUEUE_LOCKS_ATTRIBUTE, kept)
        except BaseException:
            self._changed.add(group)
            raise

    def save_soon(self, group: str) -> None:
        """No caller waits for it."""
        task = asyncio.get_running_loop().create_task(self._save_quietly(group), name="queue-locks")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save_quietly(self, group: str) -> None:
        with suppress(TroveError):  # the next change saves it, too
            await self.save(group)


def _text_of(holders: Holders) -> str:
    table: dict[str, dict[str, list[int]]] = {}
    for client_id, queues in holders.items():
        for topic, queue_id in queues:
            table.setdefault(client_id, {}).setdefault(topic, []).append(queue_id)
    return json.dumps(table, separators=(",", ":")) if table else ""


def _holders_of(text: str) -> Holders:
    """One that cannot be read counts as none."""
    with suppress(ValueError, TypeError, AttributeError):
        return {
            client_id: [(topic, QueueId(int(one))) for topic, ids in topics.items() for one in ids]
            for client_id, topics in json.loads(text or "{}").items()
        }
    return {}
