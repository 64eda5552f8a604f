"""Results of the calls about a broker's store. All are frozen values; none holds a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """Something that a check of the store found.

    Attributes:
        file: The file's path in the store's directory.
        offset: The place in the file, in bytes.
        what: The fault there.
        note: Whether it is only a remark, and no damage.
        broker: The broker whose store it is.
    """

    file: str
    offset: int
    what: str
    note: bool
    broker: str


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of the check of one store.

    Attributes:
        broker: The broker.
        findings: The findings since the previous progress; at most 1,000 in total, but all are counted.
        position: Physical offset that the check has reached, between `begin` and `end`.
        begin: The beginning of the log.
        end: The end of the log when the check began.
        records: Records checked so far.
        units: Consume-queue units checked so far.
        items: Key-index items checked so far.
        damages: Findings so far that are damage.
        notes: The other findings so far.
        done: Whether the check of this broker has ended.
    """

    broker: str
    findings: tuple[StoreFinding, ...]
    position: int
    begin: int
    end: int
    records: int
    units: int
    items: int
    damages: int
    notes: int
    done: bool


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """The progress of a backup.

    Attributes:
        broker: The broker.
        files_done: Files that are copied or linked.
        files_total: All files that are known so far.
        bytes_done: Bytes read so far.
        bytes_total: The approximate total.
        log_begin: Physical offset from which the copy has the log.
        log_end: Physical offset of the end of its log: the synced end when it began.
        linked_files: Files that are hard links.
        done: Whether the backup is complete, and on disk.
    """

    broker: str
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    log_begin: int
    log_end: int
    linked_files: int
    done: bool
