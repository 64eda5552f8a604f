"""The scrub of an open store while requests run: small steps on the loop, with a thread that reads the disk
ahead."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Final

from trovemq_broker.server.core.pace import REPORT_S, Pace
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.check.checked_store import ReadAhead
from trovemq_store.check.findings import Finding, Findings
from trovemq_store.check.live_store import IndexMappings, LiveScrub
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import SCARCE_NUMBERS, ScarceError, UnreadableError

SCRUB_STEP_BYTES: Final = 48 << 10  # bytes of the log in one step on the loop
OPEN_TRIES: Final = 5
_READ_AT_ONCE: Final = 1 << 20


async def begin_scrub(store: MessageStore, found: list[Finding]) -> LiveScrub:
    """Begins a scrub; `found` gets the findings when they are made. TroveError STORE_FAILED."""
    failure: Exception | None = None
    for _ in range(OPEN_TRIES):
        mappings = IndexMappings(store)
        try:
            await run_in_thread(mappings.open)
            store.index_deferred()  # so that the last records are checked, too
            index = mappings.now(store.visible_offset)
        except (UnreadableError, ValueError) as error:
            failure = error  # unless retention has just removed the file
            continue
        if index is not None:
            return LiveScrub(store, index, Findings(found.append), SCRUB_STEP_BYTES)
    raise TroveError(errors.STORE_FAILED, f"the key index cannot be read: {failure}")


async def scrub_steps(scrub: LiveScrub, root: Path, pace: Pace) -> AsyncGenerator[int, None]:
    """Runs the scrub; yields after each step the number of bytes that were read, perhaps 0. TroveError
    RESOURCES_SCARCE."""
    failure: OSError | None = None
    while True:
        begun = time.perf_counter()
        try:
            ahead = scrub.steps.send(failure)
        except StopIteration:
            return
        failure = None
        await pace.worked(time.perf_counter() - begun)
        if ahead is None:
            yield 0
            continue
        for begin in range(ahead.begin, ahead.end, _READ_AT_ONCE):
            part = ReadAhead(ahead.path, begin, min(begin + _READ_AT_ONCE, ahead.end))
            failure = failure or await run_in_thread(partial(read_ahead, root, part))
            if failure is not None and failure.errno in SCARCE_NUMBERS:
                raise ScarceError("read", part.path, failure.errno)  # no finding: nothing is known
            pace.read(part.end - part.begin)
            yield part.end - part.begin
            while wait_s := pace.wait_s:
                await asyncio.sleep(min(wait_s, REPORT_S))
                yield 0


def read_ahead(root: Path, part: ReadAhead) -> OSError | None:
    """Reads bytes of a file into memory, so that reading its mapping does not wait for the disk. Returns the
    disk's error; None also if the file was removed."""
    try:
        descriptor = os.open(root / part.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        os.pread(descriptor, part.end - part.begin, part.begin)
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    return None
