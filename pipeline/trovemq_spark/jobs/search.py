"""The job `search`: finds messages in an archive, a store and live brokers at once, each message once.

Ids and keys are looked up: by bloom filters in the archive, by the key index in the store, by the brokers
themselves. Other data is read in this process if it is little, and in Spark's tasks if it is much. The
report's `rows` have the messages, newest or oldest first. `complete` means that nothing was left out: every
place could be read, and there are no more rows than `limit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.job import Progress, Report
from trovemq_spark.search.answer import Answer, rows_json
from trovemq_spark.search.in_archive import ArchivePart
from trovemq_spark.search.in_server import ServerPart
from trovemq_spark.search.in_store import StorePart
from trovemq_spark.search.json_path import parse_path
from trovemq_spark.search.question import TIME_MAX, Question
from trovemq_spark.search.reading import Reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_MAX: Final = 100_000
_MSG_ID: Final = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


@dataclass(frozen=True, slots=True)
class SearchArguments:
    store: Annotated[str, "A store, or a directory of segments."] = ""
    server: Annotated[str, "Live brokers: HOST:PORT of a nameserver or a broker."] = ""
    archive: Annotated[str, "An archive. At least one of store, server and archive is required."] = ""
    topic: Annotated[str, "Only this topic."] = ""
    key: Annotated[str, "A key of the message, or its message id."] = ""
    message_id: Annotated[str, "The message id."] = ""
    offset_msg_id: Annotated[str, "The offsetMsgId: 32 or 56 hexadecimal digits."] = ""
    tag: Annotated[str, "The tag."] = ""
    begin_timestamp: Annotated[int, "Stored at or after: epoch milliseconds or 2025-01-31T12:00:00Z."] = 0
    end_timestamp: Annotated[int, "Stored at or before."] = TIME_MAX
    property: Annotated[str, "NAME=VALUE of a property."] = ""
    body_text: Annotated[str, "Text that is somewhere in the body (decompressed), in UTF-8."] = ""
    json_path: Annotated[str, "A path in a JSON body: $.a.b[0]."] = ""
    json_value: Annotated[str | None, "The value at this path, as text; any value if not given."] = None
    limit: Annotated[int, "The most messages."] = 100
    order: Annotated[
        Literal["newest", "oldest"],
        "Which messages come first, by store time; those beyond `limit` are left out.",
    ] = "newest"

    def __post_init__(self) -> None:
        if not (self.store or self.server or self.archive):
            raise _illegal("where to search is missing: --archive, --store or --server", "archive")
        if not 0 < self.limit <= LIMIT_MAX:
            raise _illegal(f"limit is 1 to {LIMIT_MAX}, not {self.limit}", "limit")
        if self.order not in ("newest", "oldest"):
            raise _illegal(f"order is newest or oldest, not {self.order!r}", "order")
        if self.begin_timestamp > self.end_timestamp:
            raise _illegal("begin_timestamp is after end_timestamp", "begin_timestamp")
        if self.property and self.property.find("=") < 1:
            raise _illegal(f"property is NAME=VALUE, not {self.property!r}", "property")
        if self.offset_msg_id and not _MSG_ID.fullmatch(self.offset_msg_id):
            raise _illegal(
                f"offset_msg_id is 32 or 56 hexadecimal digits, not {self.offset_msg_id!r}", "offset_msg_id"
            )
        if self.json_value is not None and not self.json_path:
            raise _illegal("json_value needs json_path", "json_path")
        self.question()

    def question(self) -> Question:
        """Raises TroveError OPTION_ILLEGAL."""
        name, _, value = self.property.partition("=")
        return Question(
            topic=self.topic,
            key=self.key,
            message_id=self.message_id,
            offset_msg_id=self.offset_msg_id.upper(),
            tag=self.tag,
            begin_ms=self.begin_timestamp,
            end_ms=self.end_timestamp,
            property_name=name,
            property_value=value,
            body_text=self.body_text,
            json_steps=parse_path(self.json_path) if self.json_path else None,
            json_value=self.json_value,
        )


def run(
    session: SparkSession | Callable[[], SparkSession] | None, arguments: SearchArguments, progress: Progress
) -> Report:
    """session: one, or a function that makes one when it is needed; None: everything is read in this process.

    Raises TroveError STORE_FAILED, ARCHIVE_ILLEGAL, BROKER_UNREACHABLE, …; OSError.
    """
    question = arguments.question()
    answer = Answer(arguments.limit, newest_first=arguments.order == "newest")
    reading = Reading(session, question, arguments.limit, newest_first=arguments.order == "newest")
    report = Report("search")
    complete = True
    sources: dict[str, object] = {}
    has_topic = bool(arguments.server)  # a server reports a missing topic itself
    if arguments.archive:
        archive = ArchivePart.open(arguments.archive, question)
        reading.add("archive", archive.pieces)
        complete &= archive.complete
        report.notes += archive.notes
        has_topic |= archive.has_topic
        sources["archive"] = {"fileCount": archive.file_count, "filesRead": len(archive.pieces)}
    if arguments.store:
        store = StorePart.open(arguments.store, question)
        for rows in store.direct():
            answer.add("store", rows)
        reading.add("store", store.pieces())
        complete &= store.complete
        report.notes += store.notes
        has_topic |= store.has_topic
        sources["store"] = {"indexUsed": store.found is not None, "segmentsRead": len(store.pieces())}
    sources["spark"] = reading.needs_spark
    reading.run(answer, progress)
    if arguments.server:
        server = ServerPart(arguments.server, question, lambda rows: answer.add("server", rows))
        server.run()
        complete &= server.complete
        report.notes += server.notes
    if not has_topic and not answer.table().num_rows:
        report.note_missing([question.topic], [])
    _fill_report(report, answer, complete, sources)
    return report


def _fill_report(report: Report, answer: Answer, complete: bool, sources: dict[str, object]) -> None:
    rows = rows_json(answer.table())
    if answer.damage_count:
        report.notes += answer.damage
        report.notes.append(f"{answer.damage_count} places could not be read; they may have had an answer")
    if answer.more:
        report.notes.append("there is more: raise limit, or narrow the question")
    report.facts = {
        "complete": complete and not answer.more and not answer.damage_count,
        "more": answer.more,
        "rowCount": len(rows),
        "rows": rows,
        "sources": sources,
    }


def _illegal(what: str, field: str) -> TroveError:
    return TroveError(errors.OPTION_ILLEGAL, what, field=field)
