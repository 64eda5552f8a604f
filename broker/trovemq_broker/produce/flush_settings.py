"""When the log is synced, and how long an append waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trovemq_daemon.settings import DAY_MS, GIB, setting
from trovemq_store.settings import FlushMode


def _flush_disk_type(text: str, _current: object) -> str:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    try:
        return modes[text.strip().upper()]
    except KeyError:
        raise ValueError("must be SYNC_FLUSH or ASYNC_FLUSH") from None


@dataclass(frozen=True, kw_only=True)
class FlushSettings:
    """Times in milliseconds, sizes in bytes."""

    flush_mode: Annotated[FlushMode, setting(rocketmq="flushDiskType", convert=_flush_disk_type)] = "sync"
    """sync: an acknowledgement waits for the sync that covers it; async: syncs by interval and number of
    pages."""
    flush_in_kernel_enable: Annotated[bool, setting()] = True
    """The kernel syncs the log by a request (io_submit) where it can; otherwise a thread of the broker
    does."""
    flush_interval_ms: Annotated[
        int, setting("ms", 1, 60_000, rocketmq="flushIntervalCommitLog", restart=False)
    ] = 500
    """Async flush: how often the broker checks whether the log needs a sync."""
    flush_least_pages: Annotated[
        int, setting("pages", 0, 1_000_000, rocketmq="flushCommitLogLeastPages", restart=False)
    ] = 4
    """Async flush: the least number of dirty 4-KiB pages for a sync."""
    flush_thorough_interval_ms: Annotated[
        int, setting("ms", 1, DAY_MS, rocketmq="flushCommitLogThoroughInterval", restart=False)
    ] = 10_000
    """Async flush: how often everything is synced, at least."""
    sync_flush_timeout_ms: Annotated[
        int, setting("ms", 1, 600_000, rocketmq="syncFlushTimeout", restart=False)
    ] = 5_000
    """Sync flush: an acknowledgement that waits longer becomes FLUSH_DISK_TIMEOUT."""
    unsynced_bytes_max: Annotated[int, setting("bytes", 65_536, 64 * GIB, restart=False)] = 2_147_483_648
    """Appended bytes that may wait for their sync; beyond it sends wait for space."""
    uncommitted_bytes_max: Annotated[int, setting("bytes", 65_536, 64 * GIB, restart=False)] = 268_435_456
    """In a replica group: appended bytes that may wait for the copies; beyond it sends wait for space."""
    append_wait_max_ms: Annotated[
        int, setting("ms", 1, 600_000, rocketmq="osPageCacheBusyTimeOutMills", restart=False)
    ] = 1_000
    """A send that found no space for this long is refused as OS_PAGE_CACHE_BUSY."""
    gather_max_ms: int = 5
    """How long a send waits for a running sync before it is appended."""
