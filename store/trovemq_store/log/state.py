"""Our own record of how far everything was on disk: `trovemq/state.json`, one JSON object.

    format                   1; a higher number is refused (STORE_NEWER)
    commitLogFileSize, consumeQueueFileSize, indexSlotCount, indexItemCount
                             sizes that the store was written with
    logEnd                   the log was on disk up to here
    consumeQueuePosition     every unit of a record below it was on disk
    keyIndexPosition         every index item of a record below it was on disk
    keyIndexLastOffset       physical offset of the last record that had an item then;
                             -1 = no record had one, -2 = no index was kept
    keyIndexClosed           whether the index was closed at a clean stop: its files count as they are. Else
                             (a crash, or switched off since) only items below keyIndexPosition do
    queueEnds                topic -> queue id -> max queue offset then, of records below logEnd (empty if
    there
                             are more than QUEUE_ENDS_MAX): no offset below it is assigned again
    queueBegins, logBegin    topic -> queue id -> min queue offset of those of these queues that had units
                             below consumeQueuePosition, when the log began at logBegin: while it still does,
                             a queue that is missing, or begins later, lacks its first files
    runsSealed               whether every atomic transaction in the log has the broker's seal
                             (trovemq_proto.records.run_mark). An older version did not write it: until the
                             first start after it ends, marks without seals count, too
    timeRuns                 where store times below logEnd step back (trovemq_store.log.time_runs);
                             without it all of the log is read for them
    stepMs                   if store times may step back after logEnd: no later record is earlier than this;
                             else 0
    logRestZero              whether a clean stop knew that no append had failed whose bytes may lie after
                             logEnd: the next start does not look for those of the largest one
    commitOffset             of a store with a commit limit: every record below it was committed, and applied
                             to the consume queues; it may be above logEnd. Absent from a single broker's
    crc32                    of the file: store/trovemq_store/files/sealed_json.py

Invariant: consumeQueuePosition and keyIndexPosition never pass logEnd, and logEnd never passes the last sync.
A store without this file was written by RocketMQ.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.files.sealed_json import check_seal, seal
from trovemq_store.settings import StoreSettings

PATH: Final = "trovemq/state.json"
FORMAT: Final = 1
NOTHING_INDEXED: Final = PhysicalOffset(-1)
NO_INDEX: Final = PhysicalOffset(-2)
QUEUE_ENDS_MAX: Final = 4096
"""The most entries of queueEnds that is saved while the store is open; at a clean stop it always is."""


class StoreState(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document of state.json, by the table above; offsets are physical, in bytes."""

    format: int = FORMAT
    commit_log_file_size: int
    consume_queue_file_size: int
    index_slot_count: int
    index_item_count: int
    log_end: PhysicalOffset
    consume_queue_position: PhysicalOffset
    key_index_position: PhysicalOffset
    key_index_last_offset: int = NO_INDEX
    key_index_closed: bool = False
    queue_ends: dict[str, dict[QueueId, QueueOffset]] = {}
    queue_begins: dict[str, dict[QueueId, QueueOffset]] = {}
    log_begin: PhysicalOffset = LOG_ORIGIN
    runs_sealed: bool = False
    time_runs: list[list[int]] | None = None
    step_ms: int = 0
    log_rest_zero: bool = False
    commit_offset: PhysicalOffset | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.consume_queue_position > self.log_end or self.key_index_position > self.log_end:
            raise ValueError("a projection is ahead of the log")

    @classmethod
    def of(cls, settings: StoreSettings, *, log_end: PhysicalOffset) -> StoreState:
        """The state of a store with these sizes, with nothing of its projections on disk."""
        return cls(
            commit_log_file_size=settings.commit_log_file_size,
            consume_queue_file_size=settings.consume_queue_file_size,
            index_slot_count=settings.index_slot_count,
            index_item_count=settings.index_item_count,
            log_end=log_end,
            consume_queue_position=LOG_ORIGIN,
            key_index_position=LOG_ORIGIN,
            runs_sealed=True,
        )


class _Format(msgspec.Struct):
    format: int


def load(files: FileSystem) -> StoreState | None:
    """The saved state; None if there is none or it is unreadable (everything is then checked again).

    TroveError STORE_NEWER if a newer version wrote it.
    """
    return decoded(files.read_bytes(PATH)) if files.exists(PATH) else None


def decoded(data: bytes) -> StoreState | None:
    """load() of the file's content."""
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version > FORMAT:
            raise TroveError(errors.STORE_NEWER, f"{PATH} has format {version}, this version knows {FORMAT}")
        check_seal(data)
        return msgspec.json.decode(data, type=StoreState)
    except (msgspec.MsgspecError, ValueError):
        return None


def runs_sealed(state: StoreState | None) -> bool:
    """Whether marks of transactions count only under a seal. RocketMQ, or an unknown version, wrote a store
    without a state: none of its records is cut because of a mark without a seal."""
    return state is None or state.runs_sealed


def committed_end(state: StoreState) -> PhysicalOffset:
    """Up to where the log was committed. Without a commit limit every record on disk was."""
    return state.log_end if state.commit_offset is msgspec.UNSET else state.commit_offset


def step_ms(state: StoreState | None) -> int:
    """stepMs of the table above; 0 without a state."""
    return 0 if state is None else state.step_ms


def save(files: FileSystem, state: StoreState) -> None:
    files.write_atomic(PATH, seal(msgspec.json.format(msgspec.json.encode(state))))


def check_sizes(state: StoreState, settings: StoreSettings) -> None:
    """TroveError STORE_SETTINGS_MISMATCH unless the settings are those that the store was written with."""
    pairs = (
        ("mappedFileSizeCommitLog", state.commit_log_file_size, settings.commit_log_file_size),
        ("mappedFileSizeConsumeQueue", state.consume_queue_file_size, settings.consume_queue_file_size),
        ("maxHashSlotNum", state.index_slot_count, settings.index_slot_count),
        ("maxIndexNum", state.index_item_count, settings.index_item_count),
    )
    for name, written, wanted in pairs:
        if written != wanted:
            raise TroveError(
                errors.STORE_SETTINGS_MISMATCH,
                f"the store was written with {name}={written}, the settings say {wanted}",
                setting=name,
                store=written,
                settings=wanted,
            )
