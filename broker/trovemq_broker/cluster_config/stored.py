"""The table of one store: in memory, and in its file (table_file.py).

A change is begin(), run() of its result (which blocks, and may run in another thread), and finish(). One
change at a time.

Invariants
- The table in memory changes in finish(), when the change is on disk, or not at all.
- `promised` never falls within a cluster: nothing of an older generation is stored any more.
- The secrets of users are sealed in the file. Without a key none is stored: a broker that does not ask who
  calls cannot be a member of a cluster with users, because it would forward the changes of every caller. Nor
  could a take-over continue from its copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

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
    position_from,
    position_json,
)
from trovemq_broker.cluster_config.table import NO_TABLE, ConfigTable, Head, Update
from trovemq_broker.cluster_config.table_file import FORMAT, PATH, JsonObject, TableFile
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_store.files.files import FileSystem

DIGESTS_MAX: Final = 1_024
"""Of the last versions; a follower that is further away gets all entries."""
_HEAD_MEMBERS: Final = frozenset(
    ("cluster", "owner", "generation", "version", "digest", "horizon", "history")
)
_RECORD_MEMBERS: Final = frozenset(
    ("format", "sealingKey", "promised", "removed", "head", "entries", "version", "digest", "horizon")
)


class StoredWork:
    """A change that has begun. After run(), even if that failed, StoredTable.finish() is to be called."""

    def __init__(
        self, save: Callable[[], None], update: Update | None, promised: Generation, *, removed: bool
    ) -> None:
        self._save = save
        self.update = update
        self.promised = promised
        self.removed = removed
        self.saved = False

    def run(self) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR, LIMIT_EXCEEDED; then nothing has changed."""
        self._save()
        self.saved = True


class StoredTable:
    """The table, and the highest generation that this store has seen or promised to wait for."""

    def __init__(self, file: TableFile, seal: SecretSeal | None = None) -> None:
        self._file = file
        self._seal = seal
        self._key_id = ""
        """The key of the secrets in the file; empty if it has none."""
        self._work: StoredWork | None = None
        self._digests: dict[int, str] = {}
        self.table: Final = ConfigTable()
        self.promised = NO_GENERATION
        self.removed = False
        """Whether an owner has said that this broker is no member any more: its table may lack that."""
        self.store_id = ""
        """Of a replica group: that of each node's store."""

    @classmethod
    def load(cls, files: FileSystem, seal: SecretSeal | None = None) -> StoredTable:
        """Reads the file; an empty table if there is none. `seal` None: the broker has no authentication.
        TroveError STORE_FAILED, STORE_NEWER, SEALING_KEY_MISMATCH."""
        file = TableFile(files)
        return cls.of(file.load(), file, seal)

    @classmethod
    def of(cls, bodies: Iterable[JsonObject], file: TableFile, seal: SecretSeal | None = None) -> StoredTable:
        """The table of the file, which has these records. The errors of load()."""
        stored = StoredTable(file, seal)
        try:
            for body in bodies:
                stored._read(body)
        except (ValueError, TypeError) as error:
            what = f"{PATH}: {error}: put it back from a backup of the store"
            raise DamagedError(errors.STORE_FAILED, what, file=PATH) from error
        return stored

    @property
    def key_id(self) -> str:
        """The key of the secrets that are stored; empty if there are none."""
        return self._key_id

    @property
    def fault(self) -> str:
        """The damage of one of the two copies; empty if both were whole."""
        return self._file.fault

    @property
    def head(self) -> Head:
        return self.table.head

    @property
    def is_superseded(self) -> bool:
        """Whether a later generation than the table's was seen or promised. The broker's own tables are not
        changed by this table then: its last changes may be dropped."""
        return self.promised > self.head.generation

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self._work is not None

    def digest_at(self, version: int) -> str:
        """The digest of the table at that version; empty if it is not known any more."""
        return self._digests.get(version, "")

    # --- changes --------------------------------------------------------------------------------------
    def begin(self, update: Update) -> StoredWork:
        """Begins to store an update that continues the table, or replaces it. TroveError
        SERVICE_NOT_AVAILABLE while another change is under way; AUTHENTICATION_DISABLED if it has secrets and
        there is no key."""
        if self._seal is None and (named := next((e.name for e in update.entries if e.secrets), None)):
            what = f"this broker does not authenticate callers, and the cluster has users ({named}, …)"
            raise TroveError(
                errors.AUTHENTICATION_DISABLED, f"{what}: switch authentication_enable on, and start it again"
            )
        other = update.head.cluster != self.head.cluster
        promised = update.head.generation if other else max(self.promised, update.head.generation)
        return self._begin(update, promised, removed=self.removed and not other)

    def begin_promise(self, generation: Generation, cluster: str) -> StoredWork:
        """Begins to store that no older generation of that cluster is obeyed. TroveError
        CONFIG_OTHER_CLUSTER; CONFIG_GENERATION_OLD unless it is higher than any that was seen;
        SERVICE_NOT_AVAILABLE."""
        if self.head.cluster not in ("", cluster):
            what = f"this broker belongs to cluster {self.head.cluster}, not to {cluster}"
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what)
        if generation <= self.promised:
            what = f"generation {generation} is not above {self.promised}, which this broker has seen"
            raise TroveError(errors.CONFIG_GENERATION_OLD, what, promised=str(self.promised))
        return self._begin(None, generation, removed=self.removed)

    def begin_removal(self) -> StoredWork:
        """Begins to store that this broker is no member any more. TroveError SERVICE_NOT_AVAILABLE."""
        return self._begin(None, self.promised, removed=True)

    def _begin(self, update: Update | None, promised: Generation, *, removed: bool) -> StoredWork:
        if self._work is not None:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the configuration is being changed; try again")
        save = self._saving(update, promised, removed=removed)
        self._work = StoredWork(save, update, promised, removed=removed)
        return self._work

    def _saving(self, update: Update | None, promised: Generation, *, removed: bool) -> Callable[[], None]:
        """The function that writes a change."""
        if update is None or not self._is_written_whole(update):
            body = _rendered(self._change_body(update, promised, removed=removed))
            if self._file.has_space(body):
                return partial(self._file.append, body)
        return partial(self._replace, promised, removed, update, self.head, tuple(self.table))

    def _is_written_whole(self, update: Update) -> bool:
        """Also for the first secrets: the record of everything names their key."""
        key_id = "" if self._seal is None else self._seal.key_id
        return update.base is None or (
            self._key_id != key_id and any(entry.secrets for entry in update.entries)
        )

    def _replace(
        self,
        promised: Generation,
        removed: bool,
        update: Update | None,
        head: Head,
        entries: tuple[Entry, ...],
    ) -> None:
        """Writes the table as it is after the update. Runs in another thread: of `self` only the file and its
        key are used."""
        after = ConfigTable()
        after.apply(Update(None, head, entries))
        if update is not None:
            after.apply(update)
        key_id = self._seal.key_id if self._seal is not None and any(e.secrets for e in after) else ""
        image: JsonObject = {
            "format": FORMAT,
            **({"sealingKey": key_id} if key_id else {}),
            "promised": generation_json(promised),
            **({"removed": True} if removed else {}),
            "head": head_json(after.head),
            "entries": [entry_json(entry, self._seal) for entry in after],
        }
        self._file.replace(_rendered(image))
        self._key_id = key_id

    def finish(self, work: StoredWork) -> None:
        """Ends the change; to be called after run(), even if that failed."""
        assert work is self._work, "one change at a time"
        self._work = None
        if work.saved:
            self.promised, self.removed = work.promised, work.removed
            if work.update is not None:
                self._apply(work.update)

    def _apply(self, update: Update) -> None:
        if update.base is None:
            self._digests = {}
        self.table.apply(update)
        self._digests[update.head.version] = update.head.digest
        if len(self._digests) > DIGESTS_MAX:
            del self._digests[min(self._digests)]

    def _change_body(self, update: Update | None, promised: Generation, *, removed: bool) -> JsonObject:
        if update is None:
            return {"removed": True} if removed > self.removed else {"promised": generation_json(promised)}
        head, before = update.head, self.head
        body: JsonObject = {"entries": [entry_json(entry, self._seal) for entry in update.entries]}
        same = (head.cluster, head.owner, head.generation) == (
            before.cluster,
            before.owner,
            before.generation,
        )
        if not same:
            return {"head": head_json(head), **body}
        return {"version": head.version, "digest": head.digest, "horizon": head.horizon, **body}

    # --- from JSON ------------------------------------------------------------------------------------
    def _read(self, body: JsonObject) -> None:
        """Applies one record. ValueError, TypeError; TroveError STORE_NEWER."""
        check_known(body, _RECORD_MEMBERS, PATH)
        if "format" in body:
            self._key_id = self._checked_key(str(body.get("sealingKey", "")))
            self.removed = False
        if "removed" in body:
            self.removed = body["removed"] is True
        if "promised" in body:
            self.promised = generation_from(body["promised"])
        if "head" not in body and "version" not in body:
            return
        before = self.head
        head = head_from(body["head"]) if "head" in body else _same_generation(before, body)
        entries = body.get("entries")
        if not isinstance(entries, list):
            raise ValueError("a record has no list of entries")
        base = None if "format" in body else before.position
        seal = self._seal if self._key_id else None
        self._apply(Update(base, head, tuple(entry_from(entry, seal) for entry in entries)))
        self.promised = max(self.promised, head.generation)

    def _checked_key(self, key_id: str) -> str:
        """TroveError SEALING_KEY_MISMATCH."""
        if not key_id or (self._seal is not None and self._seal.key_id == key_id):
            return key_id
        what = f"the secrets of {PATH} are sealed by another key than the key file has"
        if self._seal is None:
            what = f"{PATH} has secrets of users, and authentication_enable is off: switch it on"
        raise TroveError(errors.SEALING_KEY_MISMATCH, what, file=PATH)


def _rendered(body: JsonObject) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def head_json(head: Head) -> JsonObject:
    return {
        "cluster": head.cluster,
        "owner": head.owner,
        "generation": generation_json(head.generation),
        "version": head.version,
        "digest": head.digest,
        "horizon": head.horizon,
        "history": [position_json(end) for end in head.history],
    }


def head_from(value: object) -> Head:
    """ValueError; TroveError STORE_NEWER."""
    if not isinstance(value, dict) or not isinstance(value.get("history"), list):
        raise ValueError("a head is damaged")
    check_known(value, _HEAD_MEMBERS, f"the head in {PATH}")
    numbers = [value.get(name) for name in ("version", "horizon")]
    texts = [value.get(name) for name in ("cluster", "owner", "digest")]
    if not all(isinstance(n, int) for n in numbers) or not all(isinstance(t, str) for t in texts):
        raise ValueError("a head lacks a member")
    return Head(
        value["cluster"],
        value["owner"],
        generation_from(value.get("generation")),
        value["version"],
        value["digest"],
        value["horizon"],
        tuple(position_from(end) for end in value["history"]),
    )


def _same_generation(before: Head, body: JsonObject) -> Head:
    version, digest, horizon = body.get("version"), body.get("digest"), body.get("horizon")
    if not (isinstance(version, int) and isinstance(digest, str) and isinstance(horizon, int)):
        raise ValueError("a change lacks a member")
    if before is NO_TABLE:
        raise ValueError("a change comes before the table")
    return Head(before.cluster, before.owner, before.generation, version, digest, horizon, before.history)
