"""The table of a replica group's leader: records of its log (logged_entries.py), which each node has.

A change is begin(), run() of its result on the engine's thread, which appends, and finish() when the log is
committed up to `appended_end`. Where that is not known, as at a stop, it is lose(): the log may have the
change or not, and this table makes no other one.

Invariants
- A change is one record of the log, which a later leader has whole or not at all. A larger one is written as
  a new image of all entries, and its head after them makes them the table. The former image is removed with
  the next one.
- Another broker is sent nothing that is not committed: a later leader would give its version to another
  change.
- `promised`, `removed` and the store's id are records, too: a later leader of the group is as fenced as this
  one, and the owner knows it as the same broker.
- The file of a store that had no group, or that an older version has changed, counts where it is later than
  the records of the same cluster, by (promised, generation, version). The files stay until the log has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from trovemq_broker.cluster_config.entries import (
    NO_GENERATION,
    Entry,
    Generation,
    SecretSeal,
    check_known,
    entry_from,
    entry_json,
    generation_from,
    generation_json,
)
from trovemq_broker.cluster_config.logged_entries import (
    FORMAT,
    HEAD,
    PATH,
    ClusterEntries,
    ClusterFile,
    names_of,
)
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork, head_from, head_json
from trovemq_broker.cluster_config.table import ConfigTable, Head, Update
from trovemq_broker.cluster_config.table_file import JsonObject
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.config_table import Change
from trovemq_store.topics.lax_json import object_member
from trovemq_store.topics.security_entries import SealedEntry
from trovemq_store.topics.table_records import CLUSTER_KIND, PARTS_MAX

RUN_SIZE_MAX: Final = 1 << 20
"""Of the entries of a change that is one run of the log."""
_HEAD_MEMBERS: Final = frozenset(
    ("format", "image", "entries", "storeId", "promised", "removed", "sealingKey", "head")
)
_NOWHERE: Final = PhysicalOffset(-1)

Put = tuple[str, JsonObject | None]


class _Rank(NamedTuple):
    promised: Generation
    generation: Generation
    version: int


class LoggedTable(StoredTable):
    """The table of one store. Used from the engine's thread."""

    def __init__(
        self, entries: ClusterEntries, file: ClusterFile, seal: SecretSeal | None, run_size_max: int
    ) -> None:
        super().__init__(file.table, seal)
        self._entries = entries
        self._entries_file = file
        self._run_size_max = run_size_max
        self._change: Change[SealedEntry] | None = None
        self._image = self._last_image = 0
        self._recorded: tuple[str, _Rank] | None = None
        """The cluster and rank of the head that the log had at the start."""
        self._is_recorded = False
        self._is_lost = False
        self._problem = ""

    @classmethod
    def open(cls, store: MessageStore, seal: SecretSeal | None = None) -> LoggedTable:
        """Reads the records, or the file of a store that had no group. Blocks. TroveError STORE_FAILED,
        STORE_NEWER, SEALING_KEY_MISMATCH, DISK_FULL; StorageError."""
        assert store.tables is not None, "a group's tables are in its log"
        file = ClusterFile(store.files)
        if not store.tables.lacks_removed(CLUSTER_KIND):  # a node that led before another one did
            file.load()
        entries = ClusterEntries(file, dict(file.values))
        store.tables.attach(entries)
        settings = store.settings
        size = min(RUN_SIZE_MAX, settings.batch_size_max // 2, settings.commit_log_file_size // 4)
        table = cls(entries, file, seal, size)
        try:
            table._read_entries(store.min_offset)
            table._read_file()
        except (ValueError, TypeError) as error:
            what = f"the cluster's configuration: {error}: put the store back from a backup"
            raise DamagedError(errors.STORE_FAILED, what, file=PATH) from error
        return table

    @property
    def fault(self) -> str:
        return "; ".join(filter(None, (self._entries_file.fault, super().fault, self._problem)))

    @property
    def must_be_recorded(self) -> bool:
        """Whether there is a table, and not all of it is in the log."""
        return self.table.exists and not self._is_recorded and not self._is_lost

    @property
    def appended_end(self) -> PhysicalOffset | None:
        """The change that has begun is made when the log is committed up to here; None: nothing was
        appended."""
        return None if self._change is None or not self._change.places else self._change.end

    # --- changes --------------------------------------------------------------------------------------
    def begin_recording(self) -> StoredWork:
        """Begins to append the whole table. TroveError SERVICE_NOT_AVAILABLE."""
        assert not self._is_recorded, "the log has it"
        return self._begin(None, self.promised, removed=self.removed)

    def lose(self) -> None:
        """This node will not learn whether the change that has begun is committed: it is not made."""
        self._is_lost = True
        if self._work is not None:
            self._work.saved = False

    def finish(self, work: StoredWork) -> None:
        change, self._change = self._change, None
        if change is not None and not self._is_lost:
            self._entries.finish(change)
        if work.saved:
            self._is_recorded, self._entries.holds_files = True, False
        super().finish(work)

    def _saving(self, update: Update | None, promised: Generation, *, removed: bool) -> Callable[[], None]:
        if self._is_lost:
            what = "an earlier change of the configuration is not committed, and this node ends: try again"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, what)
        return partial(self._append, update, promised, removed)

    def _append(self, update: Update | None, promised: Generation, removed: bool) -> None:
        if self._is_recorded and (update is None or update.base is not None):
            changed = self._changed(update, promised, removed)
            if _is_one_record(changed) and _size_of(changed) <= self._run_size_max:
                self._append_run(changed)
                return
        after = self._after(update)
        present = {HEAD, *names_of(self._entries.values, self._image)}
        entries: list[Put] = [(name, None) for name in self._entries.values if name not in present]
        self._last_image = image = self._last_image + 1
        entries += [(_name_of(image, entry), entry_json(entry, self._seal)) for entry in after]
        for part in _in_parts(entries, self._run_size_max):
            self._append_part(part)
        self._note_secrets(after)
        count = after.entry_count
        self._append_run([self._head_entry(after.head, image, count, promised, removed=removed)])
        self._image = image

    def _append_part(self, part: Sequence[Put]) -> None:
        """Of an image without a head, yet or any more: it counts for nothing."""
        change = self._entries.begin_change(part)
        try:
            change.run()
        finally:
            self._entries.finish(change)

    def _append_run(self, entries: Sequence[Put]) -> None:
        self._change = self._entries.begin_change(entries)
        self._change.run()

    def _changed(self, update: Update | None, promised: Generation, removed: bool) -> list[Put]:
        """The entries of a change, and the head, which comes last."""
        count, head = self.table.entry_count, self.head
        changed: list[Put] = []
        if update is not None:
            puts, head = update.entries, update.head
            if head.horizon > self.head.horizon:
                after = self._after(update)
                gone = [one for one in self.table if after.get(one.kind, one.name) is None]
                puts = tuple(one for one in puts if after.get(one.kind, one.name) is one)
                changed += [(_name_of(self._image, one), None) for one in gone]
                count -= len(gone)
            count += sum(self.table.get(one.kind, one.name) is None for one in puts)
            changed += [(_name_of(self._image, one), entry_json(one, self._seal)) for one in puts]
            self._note_secrets(puts)
        return [*changed, self._head_entry(head, self._image, count, promised, removed=removed)]

    def _after(self, update: Update | None) -> ConfigTable:
        """The table after the update."""
        after = ConfigTable()
        after.apply(self.table.image())
        if update is not None:
            after.apply(update)
        return after

    def _note_secrets(self, entries: Iterable[Entry]) -> None:
        if self._seal is not None and any(entry.secrets for entry in entries):
            self._key_id = self._seal.key_id

    def _head_entry(self, head: Head, image: int, count: int, promised: Generation, *, removed: bool) -> Put:
        return HEAD, {
            "format": FORMAT,
            "image": image,
            "entries": count,
            "storeId": self.store_id,
            **({"sealingKey": self._key_id} if self._key_id else {}),
            "promised": generation_json(promised),
            **({"removed": True} if removed else {}),
            "head": head_json(head),
        }

    # --- start ----------------------------------------------------------------------------------------
    def _read_entries(self, min_offset: PhysicalOffset) -> None:
        """ValueError, TypeError; TroveError STORE_NEWER, SEALING_KEY_MISMATCH."""
        values, places = self._entries.values, self._entries.places
        head = object_member(values, HEAD)
        numbers = [int(name.partition("/")[0]) for name in values if name != HEAD]
        self._last_image = max([*numbers, int(str(head.get("image", 0)))])
        if not head:
            return
        if int(str(head.get("format"))) > FORMAT:
            raise TroveError(errors.STORE_NEWER, "the configuration was written by a newer TroveMQ")
        check_known(head, _HEAD_MEMBERS, "the configuration's head")
        present, promised = head_from(head["head"]), generation_from(head["promised"])
        self._recorded = present.cluster, _Rank(promised, present.generation, present.version)
        names = names_of(values, head["image"])
        if len(names) != head["entries"]:  # a version that knows no such records has let some be removed
            self._problem = f"the log has {len(names)} of {head['entries']} entries of the configuration"
            return
        self._image = int(str(head["image"]))
        self._key_id = self._checked_key(str(head.get("sealingKey", "")))
        seal = self._seal if self._key_id else None
        entries = [entry_from(values[name], seal) for name in names]
        entries.sort(key=lambda entry: entry.version.version)
        self._apply(Update(None, present, tuple(entries)))
        self.promised = promised
        self.removed = head.get("removed") is True
        self.store_id = str(head["storeId"])
        self._is_recorded = all(places.get(name, _NOWHERE) >= min_offset for name in (HEAD, *names))

    def _read_file(self) -> None:
        """Takes the table of the file if it counts more than that of the log. ValueError, TypeError;
        TroveError."""
        try:
            bodies = self._file.load()
        except TroveError as error:
            if not self._image:
                raise
            self._problem = error.message
            return
        if not bodies:
            return
        cluster, rank = _rank_of(bodies)
        if self._recorded is not None:
            own_cluster, own = self._recorded
            if cluster != own_cluster or rank < own or (self._image and rank == own):
                return
        old = StoredTable.of(bodies, self._file, self._seal)
        self._apply(old.table.image())
        self.promised, self.removed = max(old.promised, self.promised), old.removed
        self._key_id = old.key_id
        self._is_recorded, self._entries.holds_files = False, True


def _rank_of(bodies: Sequence[JsonObject]) -> tuple[str, _Rank]:
    """The cluster of the file's table, and how late it is."""
    promised = generation = NO_GENERATION
    cluster, version = "", 0
    for body in bodies:
        if "promised" in body:
            promised = generation_from(body["promised"])
        if "head" in body:
            head = head_from(body["head"])
            cluster, generation, version = head.cluster, head.generation, head.version
        elif "version" in body:
            version = int(str(body["version"]))
        promised = max(promised, generation)
    return cluster, _Rank(promised, generation, version)


def _name_of(image: int, entry: Entry) -> str:
    return f"{image}/{entry.kind}/{entry.name}"


def _is_one_record(entries: Sequence[Put]) -> bool:
    """Of several the log may keep the first ones alone."""
    return sum(1 + len(value or ()) for _, value in entries) <= PARTS_MAX


def _size_of(entries: Sequence[Put]) -> int:
    return sum(len(name) + len(json.dumps(value)) for name, value in entries)


def _in_parts(entries: Sequence[Put], size_max: int) -> Iterator[Sequence[Put]]:
    """The entries in parts of about that size."""
    part: list[Put] = []
    size = 0
    for name, value in entries:
        own = _size_of([(name, value)])
        if part and size + own > size_max:
            yield part
            part, size = [], 0
        part.append((name, value))
        size += own
    if part:
        yield part
