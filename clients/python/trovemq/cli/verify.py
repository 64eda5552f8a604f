"""verify produce|check: sends messages with a ledger, and checks that all of them are still there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.bench import make_topic
from trovemq.cli.figures import counted
from trovemq.cli.session import Session, verb

if TYPE_CHECKING:
    from trovemq._verify.checking import CheckCounts
    from trovemq._verify.evidence import Evidence
    from trovemq._verify.producing import RunSummary

app = typer.Typer(
    help="Test a deployment. Nothing acknowledged may be lost or altered.", no_args_is_help=True
)

SEED_BITS: Final = 48
SAMPLE_ALL: Final = -1
EXIT_CODE_WRONG: Final = 1

LedgerOption = Annotated[
    Path, typer.Option("--ledger", metavar="FILE", help="One JSON object a line.", show_default=False)
]


@verb(app, "produce")
async def produce(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Made where it is missing.")],
    ledger: LedgerOption,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=0.001, help="Messages a second.", show_default=False)
    ],
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.001, help="How long to send.", show_default=False)
    ],
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=1, max=4 << 20, help="Each body's size.")
    ] = 1024,
    keys: Annotated[
        int, typer.Option("--keys", metavar="N", min=1, help="Different keys that the messages share.")
    ] = 1000,
    producers: Annotated[
        int, typer.Option("--producers", metavar="N", min=1, max=256, help="How many send at a time.")
    ] = 1,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Makes the messages; a new one each run unless given."),
    ] = None,
) -> None:
    """Send messages and write each outcome into a ledger. A new one; continues while a broker restarts."""
    import secrets

    from trovemq._verify.content import RunContent
    from trovemq._verify.ledger import LedgerWriter, RunHeader
    from trovemq._verify.producing import RunPlan, RunSummary, produce_run

    content = RunContent(secrets.randbits(SEED_BITS) if seed is None else seed, size, keys)
    summary = RunSummary()
    async with session.client() as client:
        await make_topic(session, client, topic)
        queues = await session.call(client.queue_offsets(topic))
        begins = {(queue.broker, queue.queue_id): queue.max_offset for queue in queues}
        plan = RunPlan(topic, sorted(begins), content, rate, seconds, producers)
        header = RunHeader(topic, content, producers, begins, time.time_ns() // 1_000_000)
        with LedgerWriter(ledger, header) as writer:
            session.progress.at(0, text=f"sending for {seconds:g} s")
            await produce_run(client, plan, writer, summary)
    _show_run(session, topic, ledger, content.seed, summary)


def _show_run(session: Session, topic: str, ledger: Path, seed: int, summary: RunSummary) -> None:
    fields = {"topic": topic, "ledger": str(ledger), "seed": seed, **summary.to_json()}
    session.output.item(fields)
    if session.output.objects:
        return
    from trovemq.cli.render import card

    session.output.show(
        card(
            {
                "topic": topic,
                "seed": str(seed),
                "sent": f"{counted(summary.sent, 'message')} in {summary.seconds:.1f} s",
                "acknowledged": f"{summary.acknowledged:,}, {fields['messagesPerSecond']:,} a second",
                "unknown": counted(summary.unknown, "send"),
                "refused": counted(summary.refused, "send"),
            }
        )
    )


def parse_sample(text: str | int) -> int:
    """`all`, or a number. Raises typer.BadParameter (usage)."""
    if text in ("all", SAMPLE_ALL):
        return SAMPLE_ALL
    if not (str(text).isascii() and str(text).isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor `all`")
    return int(text)


@verb(app, "check")
async def check(
    session: Session,
    ledger: LedgerOption,
    sample: Annotated[
        int,
        typer.Option(
            "--sample",
            parser=parse_sample,
            metavar="N|all",
            help="How many messages to look up by offsetMsgId, id and key, too; by offset all are read.",
            show_default="all",
        ),
    ] = SAMPLE_ALL,
    expired_ok: Annotated[
        bool,
        typer.Option("--expired-ok", help="Messages that retention may have removed do not count as lost."),
    ] = False,
) -> None:
    """Read everything in a ledger back. Exit code 0 only where nothing is lost, altered, … or made up."""
    from trovemq._verify.checking import Checker
    from trovemq._verify.evidence import Evidence
    from trovemq._verify.ledger import LedgerReader

    def progress(text: str) -> None:
        session.progress.at(0, text=text)

    with LedgerReader(ledger) as reader:
        evidence = Evidence(reader.header)
        try:
            evidence.load(reader.entries(), progress)
            evidence.loaded(ended=reader.ended)
            async with session.client() as client:
                checker = Checker(client, session, evidence, progress)
                await checker.check(None if sample == SAMPLE_ALL else sample, expired_ok=expired_ok)
            _show_check(session, ledger, evidence, checker.counts, ended=reader.ended)
        finally:
            evidence.close()
    if evidence.findings.wrong:
        session.exit_code = EXIT_CODE_WRONG


def _show_check(
    session: Session, ledger: Path, evidence: Evidence, counts: CheckCounts, *, ended: bool
) -> None:
    findings = evidence.findings
    fields: dict[str, object] = {
        "topic": evidence.header.topic,
        "ledger": str(ledger),
        "ended": ended,
        "acknowledged": evidence.acknowledged,
        "unknown": evidence.unknown,
        "refused": evidence.refused,
        "read": counts.read,
        "lookedUp": counts.looked_up,
        "askedByKey": counts.asked_by_key,
        "unknownStored": findings.unknown_stored,
        "unrecorded": findings.unrecorded,
        "expired": findings.expired,
        "wrong": findings.wrong,
        **findings.counts,
        "faults": findings.faults(),
    }
    session.output.item(fields)
    if session.output.objects:
        return
    from rich.text import Text

    from trovemq.cli.render import card, printable, table

    names = {"lookedUp": "looked up", "askedByKey": "keys asked", "unknownStored": "unknown, stored"}
    shown = {
        names.get(name, name): value for name, value in fields.items() if name not in {"faults", "wrong"}
    }
    session.output.show(card({name: "yes" if value is True else value for name, value in shown.items()}))
    columns = ("kind", "message id", "broker", "queue", "offset", "what")
    rows = [
        (
            fault["kind"],
            printable(str(fault["messageId"])),
            fault["broker"],
            fault["queueId"],
            fault["queueOffset"],
            _what(fault),
        )
        for fault in findings.faults()
    ]
    if rows:
        session.output.show(table(columns, rows, numbers=("queue", "offset")))
    verdict = "✗ something is wrong" if findings.wrong else "✓ nothing is wrong"
    session.output.show(Text(verdict, style="bold red" if findings.wrong else "green"))


def _what(fault: dict[str, object]) -> str:
    if "differing" in fault:
        return f"read by {fault['by']}: {', '.join(map(str, fault['differing']))}"  # type: ignore[call-overload]
    return str(fault.get("how") or f"not found by {fault['by']}")
