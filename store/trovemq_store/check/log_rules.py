"""Findings about the log as a whole, and about its checkpoint."""

from __future__ import annotations

from typing import Final

import numpy as np

from trovemq_proto.positions import EpochMs
from trovemq_store.check.findings import Findings
from trovemq_store.files.files import File
from trovemq_store.log import checkpoint
from trovemq_store.log.checkpoint import Checkpoint
from trovemq_store.log.reader import Damage

_BYTES_AT_ONCE: Final = 1 << 24


def report_damage(findings: Findings, place: tuple[str, int], damage: Damage) -> None:
    findings.add(*place, f"{damage.end - damage.physical_offset} bytes are {damage.state.value}")


def report_tail(findings: Findings, place: tuple[str, int], end: int, byte_count: int, *, note: bool) -> None:
    """byte_count: of those at or after the log's end, how many are not zero."""
    if byte_count:
        what = f"the log ends at {end}; {byte_count} bytes after it are not zero"
        findings.add(*place, what, note=note)


def written_bytes(file: File, begin: int) -> int:
    """How many bytes of the file from `begin` on are not zero."""
    array = np.frombuffer(file.view(), np.uint8)
    return sum(
        int(np.count_nonzero(array[at : at + _BYTES_AT_ONCE]))
        for at in range(begin, len(array), _BYTES_AT_ONCE)
    )


def check_checkpoint(
    findings: Findings, saved: Checkpoint, last_store_timestamp: EpochMs, *, note: bool
) -> None:
    """last_store_timestamp: of the log's last record, epoch ms."""
    for name, timestamp, at in (
        ("physicMsgTimestamp", saved.physic_msg_timestamp, 0),
        ("logicsMsgTimestamp", saved.logics_msg_timestamp, 8),
    ):
        if timestamp > last_store_timestamp:
            what = f"{name} {timestamp} is later than the last record, {last_store_timestamp}"
            findings.add(checkpoint.PATH, at, what, note=note)
