"""The changes of this broker that a take-over has dropped: kept on disk until an operator has seen them.

`config/trovemq-cluster.dropped` is a JSON object, replaced as a whole:

    {"dropped": [["topic", "orders", "version 1.0123:8"], …]}

At most DROPPED_MAX are kept, the first ones; the log has all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from trovemq_broker.cluster_config.entries import Entry, Key, Kind
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_store.files.failures import reported
from trovemq_store.files.files import FileSystem, StorageError, UnreadableError

PATH: Final = "config/trovemq-cluster.dropped"
DROPPED_MAX: Final = 1_000
"""Changes that are kept."""


class DroppedChanges:
    """The list of one store."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._notes: dict[Key, str] = {}
        self.load()

    def load(self) -> None:
        """Reads the file. A damaged one is an empty list, and logged: the log has the changes, too."""
        try:
            if self._files.exists(PATH):
                read = json.loads(self._files.read_bytes(PATH))["dropped"]
                self._notes = {Key(Kind(kind), str(name)): str(text) for kind, name, text in read}
        except (ValueError, TypeError, KeyError, StorageError, UnreadableError) as error:
            get_logger().warning("config.dropped_unreadable", file=PATH, message=str(error))

    @property
    def notes(self) -> Mapping[Key, str]:
        """The dropped entries, and their versions."""
        return self._notes

    async def add(self, entries: Iterable[Entry]) -> None:
        """Logs the entries, and keeps them. A list that cannot be written is kept in memory."""
        count = len(self._notes)
        for entry in entries:
            get_logger().warning(
                "config.dropped", kind=entry.kind, name=entry.name, version=str(entry.version)
            )
            if len(self._notes) < DROPPED_MAX:
                self._notes[entry.key] = f"version {entry.version}"
        if len(self._notes) != count:
            try:
                await run_in_thread(self._write)
            except StorageError as error:
                get_logger().error("config.dropped_not_stored", file=PATH, message=str(error))

    async def clear(self) -> int:
        """An operator has seen them. Returns how many there were. TroveError DISK_FULL, STORE_FAILED."""
        before, self._notes = self._notes, {}
        try:
            if before:
                await run_in_thread(self._write)
        except StorageError as error:
            self._notes = {**before, **self._notes}
            raise reported(error, f"{PATH} was not written", errors.STORE_FAILED, file=PATH) from error
        return len(before)

    def _write(self) -> None:
        found = [[str(key.kind), key.name, text] for key, text in tuple(self._notes.items())]
        self._files.write_atomic(PATH, json.dumps({"dropped": found}).encode())
