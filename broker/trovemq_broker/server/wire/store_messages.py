"""Reads the requests of StoreService as commands, and makes its replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import store_pb2
from trovemq_store.check.findings import Finding
from trovemq_store.check.live_store import LiveScrub

SERVICE: Final = store_pb2.DESCRIPTOR.services_by_name["StoreService"]

RATE_DEFAULT: Final = 64 << 20  # bytes a second
RATE_MIN: Final = 1 << 10
RATE_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup to a directory. `rate`: the most bytes a second; `copy`: without hard links."""

    directory: str
    rate: int
    copy: bool


@dataclass(slots=True)
class BackupProgress:
    """The progress of a backup: offsets of the log, files and bytes."""

    log_begin: int = 0
    log_end: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    files_done: int = 0
    files_total: int = 0
    linked_files: int = 0
    done: bool = False


def backup_of(request: store_pb2.BackupRequest) -> Backup:
    """The command of a Backup. Raises TroveError REQUEST_ILLEGAL."""
    return Backup(request.directory, _checked_rate(request.bytes_per_second), request.copy)


def scrub_rate(request: store_pb2.ScrubRequest) -> int:
    """The most bytes a second of a Scrub. Raises TroveError REQUEST_ILLEGAL."""
    return _checked_rate(request.bytes_per_second)


def _checked_rate(bytes_per_second: int) -> int:
    rate = bytes_per_second or RATE_DEFAULT
    if not RATE_MIN <= rate <= RATE_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            f"{rate} bytes a second are not in {RATE_MIN}..{RATE_MAX}",
            field="bytes_per_second",
        )
    return rate


def backup_reply(progress: BackupProgress) -> store_pb2.BackupReply:
    return store_pb2.BackupReply(
        log_begin=progress.log_begin,
        log_end=progress.log_end,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        files_done=progress.files_done,
        files_total=progress.files_total,
        linked_files=progress.linked_files,
        done=progress.done,
    )


def scrub_reply(scrub: LiveScrub, found: Sequence[Finding], *, done: bool = False) -> store_pb2.ScrubReply:
    """The state of a scrub, and its findings since the last reply."""
    return store_pb2.ScrubReply(
        findings=[
            store_pb2.ScrubReply.Finding(file=each.file, offset=each.offset, what=each.what, note=each.note)
            for each in found
        ],
        position=scrub.progress.position,
        begin=scrub.begin,
        end=scrub.end,
        records=scrub.progress.records,
        units=scrub.unit_count,
        items=scrub.item_count,
        damages=scrub.findings.finding_count,
        notes=scrub.findings.note_count,
        done=done,
    )
