"""The part `trees`: the B+trees beside the log, and ActiveMQ with KahaDB, which has such, in the same run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from bench.report import Report
from bench.trees import producing
from bench.trees.beside import measure_beside
from bench.trees.engine import PAGE, measure_engine
from bench.trees.filling import GENERATED, KEYS, RANDOM
from bench.trees.lookups import measure_lookups

MESSAGES = 5_000_000
SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 28, "mappedFileSizeConsumeQueue": 6_000_000}
BYTES_A_MESSAGE = 900
"""Of the disk, at most: log, consume queue, trees."""
ABOUT = f"""\
The large store has two topics of the same size, with {KEYS:,} keys and 5 tags: the unique ids of
`{GENERATED}` are those of the SDK, which rise; those of `{RANDOM}` are uuid4, and that topic is
deduplicated. Bodies have 100 to 200 bytes. A rebuild
makes all trees from the log. A first page is up to the first {PAGE} messages, newest first. With and without
deduplication, and with and without trees, batches are sent in turn: `x` is the median of the rounds' ratios.

ActiveMQ runs as Debian packages it, with its defaults for KahaDB: a sync for every write, duplicate detection
by its message ids. Its rates are those of single sends of 1 KiB, each with a receipt; beside them stand our
single sends, each acknowledged from disk. It offers no look-up by id over STOMP but a browse with a selector.

"""


async def measure_trees(report: Report, directory: Path, *, quick: bool, messages: int | None = None) -> None:
    """messages: of the large store, fewer where the disk has no space for them."""
    messages = messages or MESSAGES // (10 if quick else 1)
    free = os.statvfs(directory)
    space = free.f_bavail * free.f_frsize // 2 // BYTES_A_MESSAGE
    if space < messages:
        report.notes.append(
            f"the large store has {space:,} messages instead of {messages:,}: the disk has no space"
        )
        messages = space
    filled = await asyncio.to_thread(measure_engine, report, directory / "large", messages)
    await measure_lookups(report, directory / "large", filled)
    rounds = 2 if quick else 6
    await producing.compare_deduplication(
        report, directory / "deduplicated", SETTINGS, rounds=rounds, messages=producing.MESSAGES
    )
    await producing.compare_trees(
        report, directory / "task", SETTINGS, rounds=rounds // 2 + 1, messages=3 * producing.MESSAGES
    )
    await measure_beside(report, directory / "beside", quick=quick)
