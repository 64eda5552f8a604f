"""A node's own state on disk: `trovemq/replica.json`, one JSON object, replaced as a whole and synced.

    format         1; a higher number is refused (STORE_NEWER)
    promisedEpoch  frames of a lower epoch are refused; durable before anything is done in it
    epochs         [[epoch, physical offset of its first byte], …] of this node's log (epochs.py)
    truncating     physical offset at which the log is being cut (truncation.py), else null. `epochs` is then
                   already that of the shorter log
    cutBytesDropped  bytes of cut records of which no file under trovemq/cut/ is kept any more
    membership     the node's place in its group (membership.py), null in the store of a single broker:
      cluster, group, node, storeId, incarnation, directory, inSyncMin
      members            version; nodes: [[node, address, replication address, whether it votes, place, id of
                         the store with which it became a voter], …]; newest, removed, lastPlace, joining
      inSync             [epoch, version, [[node, store id, incarnation], …]], or null
      leads, isSynced
    crc32          of the file: store/trovemq_store/files/sealed_json.py

Invariants
- Neither the promise nor the newest epoch goes back, except for epochs whose records are cut.
- promisedEpoch >= the newest epoch.
- `epochFileCheckpoint` (epoch_checkpoint.py) says the same as `epochs` after each call, and again after the
  next start where a crash came between the two.
- A damaged file is refused (STORE_FAILED): a lost promise could acknowledge one record twice. A missing one
  is that of a node that has promised nothing.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.files.sealed_json import check_seal, seal
from trovemq_store.replica import epoch_checkpoint
from trovemq_store.replica.epochs import EPOCH_MAX, Epochs
from trovemq_store.replica.membership import InSyncSet, Membership

PATH: Final = "trovemq/replica.json"
FORMAT: Final = 1


class _Content(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document of replica.json, by the table above."""

    format: int = FORMAT
    promised_epoch: int = 0
    epochs: list[tuple[int, int]] = []
    truncating: int | None = None
    cut_bytes_dropped: int = 0
    membership: Membership | None = None


class _Format(msgspec.Struct):
    format: int


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content. ValueError where it breaks an invariant."""

    promised_epoch: int = 0
    epochs: Epochs = Epochs()
    truncating: PhysicalOffset | None = None
    cut_bytes_dropped: int = 0
    membership: Membership | None = None

    def __post_init__(self) -> None:
        if not self.epochs.last <= self.promised_epoch <= EPOCH_MAX:
            raise ValueError(f"epoch {self.epochs.last} was begun, and {self.promised_epoch} is promised")
        if self.truncating is not None and self.epochs != self.epochs.truncated(self.truncating):
            raise ValueError(f"the epochs reach beyond {self.truncating}, where the log is cut")
        if self.cut_bytes_dropped < 0:
            raise ValueError("fewer than no bytes were dropped")


def load(files: FileSystem) -> ReplicaState | None:
    """The saved state; None if there is none. Without one, the epochs that RocketMQ left.

    TroveError STORE_NEWER, STORE_FAILED; StorageError.
    """
    if not files.exists(PATH):
        return _left_by_rocketmq(files)
    data = files.read_bytes(PATH)
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version > FORMAT:
            raise TroveError(errors.STORE_NEWER, f"{PATH} has format {version}, this version knows {FORMAT}")
        if b'"crc32"' not in data:
            raise ValueError("it has no CRC")
        check_seal(data)
        found = msgspec.json.decode(data, type=_Content)
        return ReplicaState(
            promised_epoch=found.promised_epoch,
            epochs=Epochs.of(found.epochs),
            truncating=None if found.truncating is None else PhysicalOffset(found.truncating),
            cut_bytes_dropped=found.cut_bytes_dropped,
            membership=found.membership,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        text = f"{PATH} is damaged ({error}): the node may have made promises that it does not know any more"
        raise TroveError(errors.STORE_FAILED, text, path=PATH) from error


def _left_by_rocketmq(files: FileSystem) -> ReplicaState | None:
    if not files.exists(epoch_checkpoint.PATH):
        return None
    try:
        epochs = epoch_checkpoint.decoded(files.read_bytes(epoch_checkpoint.PATH))
    except ValueError as error:
        raise TroveError(errors.STORE_FAILED, str(error), path=epoch_checkpoint.PATH) from error
    return ReplicaState(promised_epoch=epochs.last, epochs=epochs)


def save(files: FileSystem, state: ReplicaState) -> None:
    """Replaces the file, durably, and RocketMQ's file of the epochs after it. StorageError."""
    content = _Content(
        promised_epoch=state.promised_epoch,
        epochs=[(entry.epoch, entry.start) for entry in state.epochs],
        truncating=state.truncating,
        cut_bytes_dropped=state.cut_bytes_dropped,
        membership=state.membership,
    )
    fault_point("replica.before_save")
    files.write_atomic(PATH, seal(msgspec.json.encode(content)))
    fault_point("replica.after_save")
    project(files, state)


def project(files: FileSystem, state: ReplicaState) -> None:
    """Makes RocketMQ's file equal to the state where it is not. StorageError."""
    wanted = epoch_checkpoint.encoded(state.epochs)
    if files.exists(epoch_checkpoint.PATH):
        if not len(state.epochs):
            files.remove(epoch_checkpoint.PATH)
            files.sync_directory("")
        elif files.read_bytes(epoch_checkpoint.PATH) != wanted:
            files.write_atomic(epoch_checkpoint.PATH, wanted)
    elif len(state.epochs):
        files.write_atomic(epoch_checkpoint.PATH, wanted)
    fault_point("replica.after_project")


class ReplicaFile:
    """The state of one open node. Every change is on disk before the call returns. StorageError: the change
    may or may not be there after a crash, and does not count here."""

    def __init__(self, files: FileSystem, state: ReplicaState) -> None:
        self._files = files
        self.state = state

    @classmethod
    def open(cls, files: FileSystem) -> Self:
        """TroveError STORE_NEWER, STORE_FAILED; StorageError."""
        state = load(files) or ReplicaState()
        project(files, state)
        return cls(files, state)

    def reload(self) -> None:
        """The store was opened again, which may have ended a cut (truncation.py). TroveError STORE_NEWER,
        STORE_FAILED; StorageError."""
        self.state = load(self._files) or ReplicaState()

    @property
    def promised_epoch(self) -> int:
        return self.state.promised_epoch

    @property
    def epochs(self) -> Epochs:
        return self.state.epochs

    def promise(self, epoch: int) -> None:
        """From now on frames of a lower epoch are refused. ValueError for one below the promised epoch."""
        if epoch < self.promised_epoch:
            raise ValueError(f"epoch {self.promised_epoch} is promised, {epoch} is lower")
        if epoch > self.promised_epoch:
            self._change(promised_epoch=epoch)

    def begin_epoch(self, epoch: int, start: PhysicalOffset) -> None:
        """The log has records of that epoch from `start` on. ValueError unless it is later than the others,
        and promised."""
        self._change(epochs=self.epochs.begun(epoch, start))

    def begin_group(self, epochs: Epochs) -> None:
        """The store is the first copy of a new group: all records of its log are of these epochs."""
        promised = max(self.promised_epoch, epochs.last)
        if (promised, epochs) != (self.promised_epoch, self.epochs):
            self._change(promised_epoch=promised, epochs=epochs)

    def trim(self, log_begin: PhysicalOffset) -> None:
        """Forgets the epochs of which the log has no record any more."""
        epochs = self.epochs.trimmed(log_begin)
        if epochs != self.epochs:
            self._change(epochs=epochs)

    def end_at(self, log_end: PhysicalOffset) -> None:
        """Forgets the epochs of which the log has no record: a crash came before their first one was on disk.
        The promise stays."""
        epochs = self.epochs.truncated(log_end)
        if epochs != self.epochs:
            self._change(epochs=epochs)

    def restart(self, epochs: Epochs) -> None:
        """The log has begun again, empty, at a later offset (new_log.py); the promise stays. ValueError
        for an epoch above it."""
        self._change(epochs=epochs, truncating=None)

    def begin_truncation(self, end: PhysicalOffset, dropped: int) -> None:
        """The log will be cut at `end`. dropped: bytes of cut records that are not kept."""
        total = self.state.cut_bytes_dropped + dropped
        self._change(truncating=end, epochs=self.epochs.truncated(end), cut_bytes_dropped=total)

    def end_truncation(self) -> None:
        self._change(truncating=None)

    def take_place(self, membership: Membership) -> None:
        """The node's place in its group, or a changed one. ValueError for another group, or an older in-sync
        set or list of members."""
        former = self.state.membership
        if former is not None:
            if (former.cluster, former.group) != (membership.cluster, membership.group):
                raise ValueError(f"a node of group {former.group} ({former.cluster}) stays in it")
            former.with_members(membership.listed)
        if membership != former:
            self._change(membership=membership)

    def store_set(self, in_sync: InSyncSet) -> None:
        """ValueError for a set that is older than the stored one."""
        place = self.state.membership
        if place is None:
            raise ValueError("a store without a group has no in-sync set")
        self.take_place(place.with_set(in_sync))

    def leave_group(self) -> None:
        """The store is a single broker's again. Its epochs and its promise stay."""
        self._change(membership=None)

    def _change(self, **changes: object) -> None:
        state = msgspec.structs.replace(self.state, **changes)
        save(self._files, state)
        self.state = state
