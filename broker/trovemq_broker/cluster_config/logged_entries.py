"""The cluster's configuration as a table of a replica group's log, sealed, and the files that follow it.

| entry         | value                                                                                     |
|---------------|-------------------------------------------------------------------------------------------|
| `head`        | `{"format": 1, "image": n, "entries": count, "storeId": "…", "promised": generation,      |
|               | "removed": true, "sealingKey": "…", "head": head}`: members as in table_file.py           |
| `n/KIND/NAME` | an entry of image n, as in entries.py                                                     |

The table is the head's image. Entries of another one are remains of a replacement that ended half-way.

`config/trovemq-cluster.json` has the entries, so that a leader's start reads the later records alone
(trovemq_store/engine/table_log.py). Its equal second copy is `.bak`. `config/trovemq-cluster.table` follows
it, for a store that leaves its group, and for a version that knows no such records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from zlib import crc32

from trovemq_broker.cluster_config.entries import position_from
from trovemq_broker.cluster_config.table_file import FORMAT as TABLE_FORMAT
from trovemq_broker.cluster_config.table_file import TableFile
from trovemq_proto import errors
from trovemq_store.files.failures import reported
from trovemq_store.files.files import FileSystem, StorageError, UnreadableError
from trovemq_store.files.sealed_json import check_seal, seal
from trovemq_store.topics.config_table import Changed, ConfigTable
from trovemq_store.topics.lax_json import JsonObject, object_member
from trovemq_store.topics.security_entries import SealedChange, SealedEntry
from trovemq_store.topics.table_records import CLUSTER_ENTRIES_PATH, CLUSTER_KIND, Entry

PATH: Final = CLUSTER_ENTRIES_PATH
BACKUP_PATH: Final = f"{PATH}.bak"
HEAD: Final = "head"
FORMAT: Final = 1
_IN_FILE: Final = ("sealingKey", "promised", "removed", "head")


class ClusterFile:
    """The file of the entries. Call load() first, unless its content counts for nothing, and that of `table`
    before the first write()."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self.values: JsonObject = {}
        self._body = b""
        self.table: Final = TableFile(files)
        """The file for a store without a group."""
        self.crc: int | None = None
        self.is_second_copy = False
        self.fault = ""

    @property
    def whole(self) -> bool:
        return not self.is_second_copy

    def load(self) -> JsonObject:
        """The entries; empty where no copy counts: the log has them."""
        faults = []
        for path in (PATH, BACKUP_PATH):
            try:
                if not self._files.exists(path):
                    continue
                content = self._files.read_bytes(path)
                check_seal(content)
                self.values = object_member(json.loads(content), "entries")
            except (ValueError, AttributeError, UnreadableError) as error:
                faults.append(f"{path}: {error}")
                continue
            self.crc, self.is_second_copy = crc32(content), path == BACKUP_PATH
            break
        self.fault = "; ".join(faults)
        return dict(self.values)

    def begin_save(
        self, _changes: Mapping[str, JsonObject | None], _version: JsonObject
    ) -> Callable[[], None]:
        raise AssertionError("its changes are records")

    def put(self, name: str, value: JsonObject | None) -> None:
        """The next content has this entry; None: it has not."""
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def capture(self, _version: JsonObject) -> Callable[[], bytes]:
        """Returns the function that renders the present content; it may run in another thread."""
        return partial(self._render, dict(self.values))

    def _render(self, values: JsonObject) -> bytes:
        head = object_member(values, HEAD)
        own = [object_member(values, name) for name in names_of(values, head.get("image"))]
        own.sort(key=lambda entry: position_from(entry.get("version")).version)
        members: JsonObject = {name: head[name] for name in _IN_FILE if name in head}
        self._body = _json({"format": TABLE_FORMAT, **members, "entries": own}) if head else b""
        return seal(_json({"format": FORMAT, "entries": values}))

    def write(self, content: bytes) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR, LIMIT_EXCEEDED."""
        try:
            for path in (BACKUP_PATH, PATH):  # the copy that counts is written last
                self._files.write_atomic(path, content)
        except StorageError as error:
            raise reported(error, f"{PATH} was not written", errors.UNKNOWN_ERROR, file=PATH) from error
        self.crc = crc32(content)
        if self._body:
            self.table.replace(self._body)


class ClusterEntries(ConfigTable[SealedEntry]):
    """The entries of one store."""

    NOUN = CLUSTER_KIND
    NOT_FOUND = errors.CONFIG_GAP
    REMEDY = ""

    def __init__(self, file: ClusterFile, values: JsonObject) -> None:
        super().__init__(file, values, {}, SealedEntry)
        self.holds_files = False
        """Whether the files stay as they are: the log lacks changes that they have."""

    def begin_change(self, entries: Sequence[Entry]) -> SealedChange:
        """Begins to set entries, or to delete them (None), in this order. TroveError
        SERVICE_NOT_AVAILABLE."""
        parts = []
        for name, value in entries:
            after = None if value is None else SealedEntry(name, value)
            parts.append(Changed(name, self.get(name), after, value))
        change = self._begin(parts[0].name, parts, None)
        for part in parts:
            if part.after is None and part.before is not None:
                self._remove(part.name)
        return change

    def lacks(self, written: int | None) -> bool:
        return not self.holds_files and super().lacks(written)  # type: ignore[arg-type]

    def is_system(self, name: str) -> bool:
        """It may be changed on a full disk, too."""
        return True

    def _check_not_own(self, name: str) -> None:
        """All are the cluster's."""

    def _count_max(self) -> int:
        """The cluster's configuration has its limits."""
        return 1 << 30


def names_of(values: Mapping[str, object], image: object) -> list[str]:
    """The names of the image's entries."""
    prefix = f"{image}/"
    return [name for name in values if name.startswith(prefix)]


def _json(document: JsonObject) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
