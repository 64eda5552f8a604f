"""Consume queues and index files from the commit log alone, in parallel over its segments.

For a store whose projections are lost or not trusted, or whose log is too long for one machine. Only the log
is read (and `trovemq/deletions.json`, so that deleted topics stay deleted). The files are byte for byte those
that a broker writes (index files are named by their first record's store time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from trovemq_spark.job import Progress, Report
from trovemq_spark.log.sizes import FileSizes, check_sizes, complete
from trovemq_spark.rebuild.run import Rebuild, rebuild
from trovemq_spark.storage import StoragePath
from trovemq_spark.tasks import SparkTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RebuildArguments:
    store: Annotated[
        str,
        "The store, or a directory of commit-log segments: a path or a URI. It is only read.",
    ]
    out: Annotated[
        str,
        "Where `consumequeue/` and `index/` are made; not the store. All tasks must reach it.",
    ]
    parts: Annotated[
        Literal["both", "consumequeue", "index"],
        "The parts to rebuild: both, consumequeue or index.",
    ] = "both"
    consume_queue_file_size: Annotated[
        int,
        "Bytes of one consume-queue file (mappedFileSizeConsumeQueue); 0: that of the store's files.",
    ] = 0
    index_slot_count: Annotated[
        int,
        "Slots of one index file (maxHashSlotNum); 0: that of the store's files.",
    ] = 0
    index_item_count: Annotated[
        int,
        "Items of one index file (maxIndexNum); 0: that of the store's files.",
    ] = 0
    tags: Annotated[
        bool,
        "Whether tags are indexed, as RocketMQ does from 5.4 on; false makes the index of older ones.",
    ] = True

    def check(self) -> None:
        """Raises TroveError OPTION_ILLEGAL."""
        check_sizes(self.sizes())

    def sizes(self) -> FileSizes:
        """The given sizes."""
        return FileSizes(self.consume_queue_file_size, self.index_slot_count, self.index_item_count)


def run(session: SparkSession, arguments: RebuildArguments, progress: Progress) -> Report:
    """Raises TroveError STORE_FAILED, STORE_SETTINGS_MISMATCH, OFFSET_OUT_OF_RANGE if a segment was removed
    meanwhile, OPTION_ILLEGAL, JOB_RUNNING, DISK_FULL; OSError."""
    wanted = Rebuild(
        arguments.store,
        StoragePath(arguments.out),
        complete(arguments.sizes(), StoragePath(arguments.store)),
        arguments.parts,
        arguments.tags,
    )
    return rebuild(wanted, SparkTasks(session, progress))
