"""Results of the calls about a broker's store. All are frozen values; none holds a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """Something that a check of the store found.

    Attributes:
        file: The file's path in the store's directory.
        offset: Where in the file, in bytes.
        what: The fault there.
        note: It is not damage, only something to know.
        broker: The broker whose store it is.
    """

    file: str
    offset: int
    what: str
    note: bool
    broker: str


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far the check of one store is.

    Attributes:
        broker: The broker.
        findings: The findings since the last one; at most 1,000 in all, while the counts continue.
        position: Physical offset that the check has reached, between `begin` and `end`.
        begin: Where the log began.
        end: Where it ended when the check began.
        records: Records checked so far.
        units: Consume-queue units checked so far.
        items: Key-index items checked so far.
        damages: Findings so far that are damage.
        notes: The other findings so far.
        done: This is the last one of the broker.
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
    """How far a backup is.

    Attributes:
        broker: The broker.
        files_done: Files that are copied or linked.
        files_total: All files that are known so far.
        bytes_done: Bytes read so far.
        bytes_total: All of them, about.
        log_begin: Physical offset from which the copy has the log.
        log_end: Physical offset of the end of its log: the synced end when it began.
        linked_files: Files that are hard links.
        done: The backup is whole, and on disk.
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
