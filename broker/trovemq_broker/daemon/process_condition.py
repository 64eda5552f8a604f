"""The condition of a broker's process, for `trovemq doctor`."""

from __future__ import annotations

import resource
import stat
from pathlib import Path
from typing import Final

from trovemq_broker.admin.condition import Condition
from trovemq_broker.daemon.opening import wall_ms
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance.retention_task import RetentionTask
from trovemq_daemon.addresses import Address
from trovemq_daemon.ops_http import Readiness
from trovemq_daemon.threads import run_in_thread
from trovemq_proto.interpreter import interpreter_text
from trovemq_store.engine.message_store import MessageStore

OPEN_FILES: Final = Path("/proc/self/fd")


async def look(
    settings: BrokerSettings,
    store: MessageStore,
    retention: RetentionTask,
    version: str,
    readiness: Readiness,
) -> Condition:
    """The present condition."""
    files, mode = await run_in_thread(lambda: (open_files(), mode_of(settings.store_path)))
    problems = readiness.problems()
    return Condition(
        version=version,
        now_ms=wall_ms(),
        reasons=[f"{name}: {text}" for name, text in problems.items() if text],
        warnings=[f"{name}: {text}" for name, text in readiness.warnings().items()],
        disk_used_percent=retention.counters.disk_used_percent,
        disk_full=retention.counters.disk_full or store.reserve.is_full(),
        open_files=files,
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        store_mode=mode,
        authentication=settings.authentication_enable,
        plain_exposed=exposed(settings.listen_address),
        http_exposed="" if settings.http_tls else exposed(settings.http_address),
        interpreter=interpreter_text(),
    )


def open_files() -> int:
    """The number of open files of this process. Blocks. 0 if the operating system does not report it."""
    try:
        return sum(1 for _ in OPEN_FILES.iterdir())
    except OSError:
        return 0


def mode_of(directory: Path) -> int:
    """The permission bits of a directory; blocks. 0 if they cannot be read."""
    try:
        return stat.S_IMODE(directory.stat().st_mode)
    except OSError:
        return 0


def exposed(address: Address | None) -> str:
    """The address, if other machines can reach it, or an empty text."""
    return "" if address is None or address.is_loopback else str(address)
