"""store scrub|backup: checks and copies a broker's store while it is in use.

The verbs for the store of a stopped broker are in `trovemq.cli.store_tools`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, OneBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq.cli.sizes import parse_size
from trovemq.cli.store_tools import add_tools
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import BackupProgress, Client, ScrubProgress, StoreFinding

app = typer.Typer(
    help="A broker's store: scrub, backup, verify and more. All but scrub and backup need a stopped broker.",
    no_args_is_help=True,
)
add_tools(app)

RATE_MIN: Final = 1024
RATE_MAX: Final = 1 << 40


def parse_rate(text: str | int) -> int:
    """A rate within RATE_MIN … RATE_MAX. Raises typer.BadParameter (usage)."""
    rate = parse_size(text)
    if not RATE_MIN <= rate <= RATE_MAX:
        raise typer.BadParameter(f"{text} is outside {RATE_MIN} … {RATE_MAX} bytes")
    return rate


RateOption = Annotated[
    int | None,
    typer.Option(
        "--rate",
        metavar="BYTES",
        parser=parse_rate,
        help="Bytes a second that may be read for it, also as 512KiB or 1GiB (64MiB).",
        show_default=False,
    ),
]


@verb(app, "scrub")
async def scrub(session: Session, rate: RateOption = None, broker: EveryBrokerOption = None) -> None:
    """Check all of every broker's store. Each record, queue unit and key-index item, beside its work."""
    findings: list[StoreFinding] = []
    ended: list[ScrubProgress] = []
    copied: set[str] = set()
    async with session.client() as client:
        async for progress in session.each(client.admin.store.scrub(broker=broker, bytes_per_second=rate)):
            findings += progress.findings
            done, total = progress.position - progress.begin, progress.end - progress.begin
            session.progress.at(done, total, f"scrub of {progress.broker}", in_bytes=True)
            if progress.done:
                ended.append(progress)
        if any(end.damages for end in ended):
            copied = await _copied(client)
    session.exit_code = 1 if any(end.damages for end in ended) else 0
    if findings:
        session.show_list(findings, _FINDINGS)
    session.show_list(ended, _SCRUBS)
    damaged = {end.broker for end in ended if end.damages}
    if damaged & copied:
        session.output.remark(
            "a node of a replica group takes damaged records from another copy within seconds: scrub it"
            " again; the node's log has replica.repaired, or replica.not_repaired with the reasons"
        )
    if damaged - copied:
        session.output.remark(
            "damaged records in commitlog/ are left out of every answer (a backup may have them); `trovemq "
            "store repair` on the stopped store rebuilds all else"
        )


async def _copied(client: Client) -> set[str]:
    """The replica groups with several nodes. None where they cannot be asked."""
    try:
        groups = await client.admin.replicas.groups()
    except TroveError:
        return set()
    return {one.group for one in groups if len(one.nodes) > 1}


_FINDINGS: Final[Columns[StoreFinding]] = Columns(
    Column("broker", "broker", lambda found: found.broker),
    Column("file", "file", lambda found: found.file),
    Column("offset", "offset", lambda found: found.offset, number=True),
    Column("what", "what", lambda found: found.what, escaped=True),
    Column(
        "note", "kind", lambda found: found.note, lambda found: "note" if found.note else "damage", place=1
    ),
)
_SCRUBS: Final[Columns[ScrubProgress]] = Columns(
    Column("broker", "broker", lambda end: end.broker),
    Column("commitLogMinOffset", None, lambda end: end.begin),
    Column("commitLogMaxOffset", None, lambda end: end.end),
    Column("records", "records", lambda end: end.records, number=True),
    Column("units", "units", lambda end: end.units, number=True),
    Column("items", "items", lambda end: end.items, number=True),
    Column("damages", "damages", lambda end: end.damages, number=True),
    Column("notes", "notes", lambda end: end.notes, number=True),
)


@verb(app, "backup")
async def backup(
    session: Session,
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="On the broker's machine: missing or empty, absolute.", show_default=False
        ),
    ],
    rate: RateOption = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy closed segments too, instead of hard links to them.")
    ] = False,
    broker: OneBrokerOption = None,
) -> None:
    """Copy a broker's store. As it is on disk now, into a directory of the broker's machine."""
    last: BackupProgress | None = None
    async with session.client() as client:
        steps = client.admin.store.backup(directory, broker=broker, bytes_per_second=rate, copy=copy)
        async for progress in session.each(steps):
            last = progress
            session.progress.at(
                progress.bytes_done, progress.bytes_total, f"backup of {progress.broker}", in_bytes=True
            )
    assert last is not None, "a stream that ends without an error says at least that it is done"
    session.output.item(backup_fields(last, directory))
    if session.output.objects:
        return
    from trovemq.cli.render import card, humane_size

    session.output.show(
        card(
            {
                "broker": last.broker,
                "directory": directory,
                "files": last.files_done,
                "hard links": last.linked_files,
                "read": humane_size(last.bytes_done),
                "log from": last.log_begin,
                "log to": last.log_end,
            }
        )
    )


def backup_fields(progress: BackupProgress, directory: str) -> dict[str, object]:
    """The JSON object of a completed backup."""
    return {
        "broker": progress.broker,
        "directory": directory,
        "files": progress.files_done,
        "linkedFiles": progress.linked_files,
        "bytes": progress.bytes_done,
        "commitLogMinOffset": progress.log_begin,
        "commitLogMaxOffset": progress.log_end,
    }
