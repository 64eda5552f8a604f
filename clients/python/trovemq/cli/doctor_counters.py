"""Counters of a broker that are 0 while nothing is wrong, as `trovemq doctor` and the console judge them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trovemq.cli.doctor_evidence import Evidence, Finding


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter. `what`: with its value as {0}; `note`: it is only information."""

    name: str
    what: str
    to_do: str
    note: bool = True


_REPAIR: Final = "find and mend them: docs/how-to/back-up-and-restore.md"
_LOG: Final = "look in its log for the reason"
_DISK: Final = "look at its disk, and in its log for the reason"
COUNTED: Final = (
    Counted("damaged_ranges", "{0} damaged places of the log were met", _REPAIR, note=False),
    Counted("scrub_damages", "scrubs found {0} damages", _REPAIR, note=False),
    Counted(
        "retention_dropped_unacknowledged",
        "{0} unacknowledged messages were removed to free the disk",
        "add disk, or consumers of the topics that hold it: trovemq topic list",
        note=False,
    ),
    Counted(
        "lagging_projections", "{0} indexes have not reached the end of the log", f"wait; if it lasts, {_LOG}"
    ),
    Counted(
        "trees_quarantined",
        "its search trees could not be trusted at the start, and are rebuilt from the log",
        "wait",
    ),
    Counted("projection_failures", "{0} batches were refused by an index, and are tried again", _LOG),
    Counted("segment_create_failures", "{0} segments of the log could not be made", _DISK),
    Counted("index_create_failures", "{0} index files could not be made", _DISK),
    Counted("retention_failures", "{0} removals of old segments failed", _DISK),
    Counted(
        "flush_timeouts",
        "{0} acknowledgements came before their sync (FLUSH_DISK_TIMEOUT)",
        "see whether its disk is slow: trovemq errors FLUSH_DISK_TIMEOUT",
    ),
    Counted(
        "replica_timeouts",
        "{0} acknowledgements came before the copies (REPLICA_TIMEOUT)",
        "look at the copies: trovemq replica status",
    ),
    Counted("backup_failures", "{0} backups failed", _LOG),
)


def remarks(counters: Mapping[str, int]) -> Iterator[tuple[Counted, str]]:
    """The counters that are not 0, with their texts."""
    for one in COUNTED:
        if value := counters.get(one.name, 0):
            yield one, one.what.format(f"{value:,}")


def counters(evidence: Evidence) -> Iterator[Finding]:
    """No counter of damage or failures has grown since the broker's start."""
    for broker in evidence.brokers:
        if broker.holdings is not None:
            for one, what in remarks(broker.holdings.counters):
                yield Finding("counters", broker.info.name, what, one.to_do, note=one.note)
