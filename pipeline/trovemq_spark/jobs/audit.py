"""The job `audit`: checks a stopped store, or a backup, against itself.

The log's records are read segment by segment, in parallel, and compared with the consume queues and index
files in the same tasks, so that workers exchange only runs of queue offsets and, for message ids, 16 bytes
per message.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.audit.whole import CHECKS, Audit
from trovemq_spark.job import Progress, Report
from trovemq_spark.log.sizes import FileSizes, check_sizes
from trovemq_spark.tasks import Runner, SparkTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class AuditArguments:
    """The store, the topics and the checks."""

    store: Annotated[str, "The store: a directory or a URI; not one that a broker has open."]
    checks: Annotated[
        tuple[str, ...],
        "Some of log, queues, index, messageIds, groups, files; none: all of them.",
    ] = ()
    groups: Annotated[
        tuple[str, ...],
        "The consumer groups whose unacknowledged messages are reported; none: all of them.",
    ] = ()
    consume_queue_file_size: Annotated[
        int,
        "mappedFileSizeConsumeQueue in bytes; 0: as the store's files say.",
    ] = 0
    index_slot_count: Annotated[int, "maxHashSlotNum of the index files; 0: as the store's files say."] = 0
    index_item_count: Annotated[int, "maxIndexNum of the index files; 0: as the store's files say."] = 0

    def check(self) -> None:
        """Raises TroveError OPTION_ILLEGAL."""
        _checks(self.checks)
        check_sizes(self.sizes)

    @property
    def sizes(self) -> FileSizes:
        return FileSizes(self.consume_queue_file_size, self.index_slot_count, self.index_item_count)


def run(session: SparkSession, arguments: AuditArguments, progress: Progress) -> Report:
    """The report has findings by file and byte offset; its facts are counts, and `unacknowledged` by group,
    topic and queue.

    Raises TroveError STORE_FAILED if there is no store, OPTION_ILLEGAL.
    """
    return audit(SparkTasks(session, progress), arguments)


def audit(runner: Runner, arguments: AuditArguments) -> Report:
    """The same with the tasks of this runner."""
    report = Report("audit")
    made = Audit(runner, _checks(arguments.checks), frozenset(arguments.groups), report)
    made.run(arguments.store, arguments.sizes)
    return report


def _checks(names: tuple[str, ...]) -> frozenset[str]:
    chosen = frozenset(names or CHECKS)
    for name in sorted(chosen - set(CHECKS)):
        nearest = difflib.get_close_matches(name, CHECKS, 1, 0.0)[0]
        raise TroveError(
            errors.OPTION_ILLEGAL,
            f"checks: there is no check {name!r}; did you mean {nearest!r}? ({', '.join(CHECKS)})",
            field="checks",
        )
    return chosen
