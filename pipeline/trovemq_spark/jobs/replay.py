"""The job `replay`: sends messages of an archive, a store or a live topic again, to a broker or another
topic.

The messages of a queue keep their order; a ledger in `out` allows an interrupted replay to continue, with
each message sent once (replay/ledger.py). Each message has its origin in its properties (replay/messages.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from trovemq import connect
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark import live_loop
from trovemq_spark.job import Progress, Report
from trovemq_spark.replay.ledger import Ledger
from trovemq_spark.replay.sender import ReplayTarget
from trovemq_spark.replay.source import QueuePlan, Wanted, by_task, messages, plan, preview
from trovemq_spark.replay.task import CONNECT_WAIT_MS, RESULT_DDL, ReplayTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "replay"


@dataclass(frozen=True, slots=True)
class ReplayArguments:
    server: Annotated[
        str,
        "Where messages are sent: HOST:PORT of a nameserver or a broker. A dry run needs none.",
    ] = ""
    out: Annotated[
        str,
        "The ledger, a directory that all tasks reach; one replay has one. A dry run needs none.",
    ] = ""
    store: Annotated[str, "The source: a store, or a directory of commit-log segments."] = ""
    archive: Annotated[str, "The source: an archive."] = ""
    source_server: Annotated[
        str,
        "The source: HOST:PORT of a nameserver or a broker, as its queues are now.",
    ] = ""
    topics: Annotated[tuple[str, ...], "Only these topics of the source; none: all but system topics."] = ()
    begin_timestamp: Annotated[
        int,
        "Only messages stored at or after this time, epoch ms; 0: from the first on.",
    ] = 0
    end_timestamp: Annotated[int, "Only messages stored before this time, epoch ms; 0: to the last."] = 0
    keys: Annotated[tuple[str, ...], "Only messages with one of these keys."] = ()
    target_topic: Annotated[
        str,
        "The topic that all messages are sent to; if not given, each goes to the topic that it comes from.",
    ] = ""
    target_broker: Annotated[
        str,
        "The broker that they are sent to; if not given, every broker that has the topic.",
    ] = ""
    create_topics: Annotated[
        bool,
        "Whether missing topics are created, with as many queues as the source has.",
    ] = False
    rate: Annotated[float, "The most messages per second, of all tasks together; 0: no limit."] = 0.0
    skip_unsendable: Annotated[
        bool,
        "Whether messages that no broker would take (too large, an illegal tag or property) are counted and "
        "left out; else the first one stops the replay.",
    ] = False
    dry_run: Annotated[bool, "Only counts the messages, by topic and queue, with the time range."] = False

    def check(self) -> None:
        """Raises TroveError OPTION_ILLEGAL, REQUEST_ILLEGAL for an illegal address."""
        _wanted(self).check()
        for server in filter(None, (self.server, self.source_server)):
            connect(server)  # opens no connection: an illegal address raises


def run(session: SparkSession, arguments: ReplayArguments, progress: Progress) -> Report:
    """Raises TroveError OPTION_ILLEGAL, JOB_RUNNING, TOPIC_NOT_FOUND, DATA_LOST, STORE_FAILED,
    ARCHIVE_ILLEGAL, and the SDK's errors if a send failed: then the next run continues."""
    wanted = _wanted(arguments)
    ledger = None if arguments.dry_run else Ledger(arguments.out)
    report = Report(JOB)
    with nullcontext() if ledger is None else ledger.locked():
        run_name = "" if ledger is None else ledger.begin(_identity(arguments))
        progress.begin("counting", 0)
        plans = plan(session, wanted)
        report.facts["dryRun"] = arguments.dry_run
        report.facts["messages"] = sum(entry.count for entry in plans)
        report.facts["topics"] = preview(plans)
        report.note_missing(arguments.topics, (entry.queue.topic for entry in plans))
        if ledger is not None and plans:
            _prepare_topics(arguments, plans)
            parallelism = session.sparkContext.defaultParallelism
            rate, partitions = shares(arguments.rate, parallelism, len(plans))
            target = ReplayTarget(
                arguments.server,
                arguments.target_topic,
                arguments.target_broker,
                ledger,
                run_name,
                rate,
                arguments.skip_unsendable,
            )
            progress.begin("sending", len(plans))
            sent = by_task(session, messages(session, wanted), plans, partitions)
            results = sent.mapInArrow(ReplayTask(target).run, RESULT_DDL).collect()
            progress.advance(len(plans))
            _fill_report(report, [row.asDict() for row in results])
    report.facts["run"] = run_name
    return report


def shares(rate: float, parallelism: int, queues: int) -> tuple[float, int]:
    """(messages per second of each task, partitions). Without a limit each queue has its own task; with one
    there are no more tasks than can share it."""
    if not rate:
        return 0.0, queues
    tasks = min(parallelism, queues)
    return rate / tasks, tasks


def _wanted(arguments: ReplayArguments) -> Wanted:
    if not arguments.rate >= 0:
        raise TroveError(errors.OPTION_ILLEGAL, f"rate = {arguments.rate} is below 0", field="rate")
    if not arguments.dry_run:
        for name in ("server", "out"):
            if not getattr(arguments, name):
                text = f"{name} is missing: a replay needs a server to send to and a directory for its ledger"
                raise TroveError(errors.OPTION_ILLEGAL, text, field=name)
    if arguments.source_server and arguments.source_server == arguments.server:
        same = arguments.target_topic in arguments.topics or not arguments.topics
        if not arguments.target_topic or same:
            raise TroveError(
                errors.OPTION_ILLEGAL,
                "source and target are the same topic of the same server: name another target_topic",
                field="target_topic",
            )
    return Wanted(
        arguments.store,
        arguments.archive,
        arguments.source_server,
        arguments.topics,
        arguments.begin_timestamp,
        arguments.end_timestamp,
        arguments.keys,
    )


def _identity(arguments: ReplayArguments) -> dict[str, Any]:
    """The arguments that define which messages go where; the target's address may change."""
    return {
        "store": arguments.store,
        "archive": arguments.archive,
        "sourceServer": arguments.source_server,
        "topics": sorted(arguments.topics),
        "beginTimestamp": arguments.begin_timestamp,
        "endTimestamp": arguments.end_timestamp,
        "keys": sorted(arguments.keys),
        "targetTopic": arguments.target_topic,
        "targetBroker": arguments.target_broker,
    }


def _prepare_topics(arguments: ReplayArguments, plans: Sequence[QueuePlan]) -> None:
    """Creates the target's missing topics, or raises for them, before anything is sent."""
    queues: dict[str, int] = {}
    for entry in plans:
        topic = arguments.target_topic or entry.queue.topic
        queues[topic] = max(queues.get(topic, 0), entry.queue.queue_id + 1)

    async def prepare() -> None:
        async with connect(arguments.server, wait_ms=CONNECT_WAIT_MS) as client:
            there = {topic.topic for topic in await client.admin.list_topics(include_system=True)}
            missing = sorted(queues.keys() - there)
            if missing and not arguments.create_topics:
                raise TroveError(
                    errors.TOPIC_NOT_FOUND,
                    f"the target has no topic {', '.join(missing)}: create it, or set create_topics = true",
                    topic=missing[0],
                )
            for topic in missing:
                await client.admin.create_topic(topic, queues[topic], broker=arguments.target_broker or None)

    live_loop.run(prepare())


def _fill_report(report: Report, results: list[dict[str, Any]]) -> None:
    results.sort(key=lambda row: (row["topic"], row["broker"], row["queueId"]))
    for name in ("sent", "before", "settled", "repeated", "unsendable"):
        report.facts[name] = sum(row[name] for row in results)
    report.facts["queues"] = results
    if report.facts["repeated"]:
        report.notes.append(
            f"{report.facts['repeated']} messages of the source had an offset twice: left out"
        )
    if report.facts["unsendable"]:
        report.notes.append(
            f"{report.facts['unsendable']} messages of the source cannot be sent: left out (skip_unsendable)"
        )
    if report.facts["before"] or report.facts["settled"]:
        report.notes.append("continued after the messages of an earlier run")
