"""`trovemq store verify|dump|export|repair|restore`: for a store whose broker is stopped or killed.

Only `repair`, which rebuilds consume queues and key index from the log, and `restore`, which makes a store
from a backup, write to a store. The answer is on standard output: one JSON object per line, with `-o yaml` a
list of them, as text by default with `verify`, `repair` and `restore`. Warnings and errors are on standard
error.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from trovemq_broker.daemon.rocketmq_keys import IGNORED_KEYS
from trovemq_broker.daemon.settings import ENVIRONMENT_PREFIX, BrokerSettings
from trovemq_broker.tools import dump, export, tree_dump
from trovemq_broker.tools.config_check import check_config
from trovemq_broker.tools.summary_text import summary_lines
from trovemq_broker.tools.tree_dump import TreeView
from trovemq_daemon.settings import SettingsError, load_settings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import message_fields
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.backup.restore import restore
from trovemq_store.check.findings import Finding, Findings
from trovemq_store.check.repair import repair
from trovemq_store.check.stopped_trees import stopped_trees
from trovemq_store.check.store_view import SIZES, LogScan, StoreView
from trovemq_store.check.verify import verify
from trovemq_store.files.files import StorageError

EXIT_FINE: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_USAGE: Final = 2
EXIT_CODES_HELP: Final = "Exit codes: 0 fine, 1 findings or an unreadable store, 2 usage."

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help=__doc__,
)

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Directory of the store; else as `trovemq server` finds it: that of --config, or ./data.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The broker's settings.", show_default=False),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any setting; sizes that are not given are inferred. Repeatable."
    ),
]


class ObjectFormat(StrEnum):
    """How the objects of an answer are printed."""

    JSON = "json"
    YAML = "yaml"


class Format(StrEnum):
    """How an answer is printed that may be a text."""

    JSON = "json"
    YAML = "yaml"
    TABLE = "table"


JsonOption = Annotated[bool, typer.Option("--json", help="The answer as JSON: short for -o json.")]
OutputOption = Annotated[
    Format, typer.Option("--output", "-o", help="The answer as objects, or as text (table).")
]
ObjectsOption = Annotated[ObjectFormat, typer.Option("--output", "-o", help="How its objects are printed.")]


class DumpPart(StrEnum):
    """The parts that `dump` can show."""

    RECORDS = "records"
    CONSUME_QUEUE = "consumequeue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class _Opened:
    root: Path
    view: StoreView
    config: Mapping[str, str]


@app.command("verify", epilog=EXIT_CODES_HELP)
def verify_command(
    store: Store = None,
    config: Config = None,
    set_: Assignments = None,
    as_json: JsonOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Check every record, consume-queue unit and index item, and print the findings of a recovery."""

    objects = _objects(as_json, output)

    def report(finding: Finding) -> None:
        if objects is None:
            _line(str(finding))
        else:
            _print([finding.to_json()], objects)

    opened, findings = _open(store, config, set_), Findings(report)
    check_config(opened.view, findings)
    summary = verify(opened.view, findings)
    _print_summary(summary.to_json(), objects)
    raise typer.Exit(EXIT_FINDINGS if summary.findings else EXIT_FINE)


@app.command("dump", epilog=EXIT_CODES_HELP)
def dump_command(
    part: Annotated[
        DumpPart | None,
        typer.Argument(
            metavar="PART",
            help="records, consumequeue, index or checkpoint; none with --tree.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC QUEUE", help="For consumequeue.", show_default=False)
    ] = None,
    *,
    store: Store = None,
    config: Config = None,
    set_: Assignments = None,
    begin: Annotated[int, typer.Option(help="For records: the physical offset to begin at.", min=0)] = 0,
    tree: Annotated[
        TreeView | None, typer.Option("--tree", help="The B+trees' view of the messages.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    output: ObjectsOption = ObjectFormat.JSON,
) -> None:
    """Show records, the units of one consume queue, the index files, the checkpoint or a B+tree."""
    arguments = queue or []
    if (part is None) == (tree is None):
        raise typer.BadParameter("name a part to show, or --tree")
    if part is DumpPart.CONSUME_QUEUE and not (len(arguments) == 2 and arguments[1].isdecimal()):
        raise typer.BadParameter("consumequeue needs TOPIC QUEUE")
    if part is not None and part is not DumpPart.CONSUME_QUEUE and arguments:
        raise typer.BadParameter(f"{part.value} takes no further arguments")
    opened = _open(store, config, set_)
    scan = LogScan()
    objects = ObjectFormat.JSON if as_json else output
    if tree is not None:
        _print_tree(opened.view, tree, objects)
    match part:
        case DumpPart.RECORDS:
            _print(dump.records(opened.view, scan, PhysicalOffset(begin)), objects)
        case DumpPart.CONSUME_QUEUE:
            _print(dump.consume_queue(opened.view, arguments[0], QueueId(int(arguments[1]))), objects)
        case DumpPart.INDEX:
            _print(dump.index(opened.view), objects)
        case DumpPart.CHECKPOINT:
            _print(dump.checkpoint_fields(opened.view), objects)
    raise typer.Exit(_warn_of_damage(opened.view, scan))


def _print_tree(view: StoreView, chosen: TreeView, objects: ObjectFormat) -> None:
    with stopped_trees(view, lambda text: _warn(f"note: {text}")) as (reader, numbers):
        _print(tree_dump.tree(view, chosen, reader, numbers), objects)


@app.command("export", epilog=EXIT_CODES_HELP)
def export_command(
    store: Store = None,
    config: Config = None,
    set_: Assignments = None,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="One document: messages, queues, topics, settings.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name in the manifest; default: the directory's.")] = None,
    as_json: JsonOption = False,
    output: ObjectsOption = ObjectFormat.JSON,
) -> None:
    """Write every message, one JSON object a line. As `trovemq pull --json`: a body that is not UTF-8 is
    `bodyBase64`. `trovemq produce --format messages` reads it."""
    opened = _open(store, config, set_)
    objects = ObjectFormat.JSON if as_json else output
    scan = LogScan()
    if manifest:
        named = name or opened.root.resolve().name
        _print([export.manifest(opened.view, scan, named, opened.config)], objects)
    else:
        found = export.messages(opened.view, scan)
        _print((message_fields(message.to_manifest()) for message in found), objects)
    raise typer.Exit(_warn_of_damage(opened.view, scan))


@app.command("repair", epilog=EXIT_CODES_HELP)
def repair_command(
    store: Store = None,
    config: Config = None,
    set_: Assignments = None,
    as_json: JsonOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Rebuild consume queues and key index from the log; the log is only read, damaged records stay."""
    opened = _open(store, config, set_)
    with _failures_exit():
        done = repair(opened.view, opened.root)
    for damage in done.damages:
        path, offset = opened.view.log_place(damage.physical_offset)
        _warn(
            f"kept: {path} at {offset}: {damage.end - damage.physical_offset} bytes are {damage.state.value}"
        )
    for begin, end in done.misplaced:
        path, offset = opened.view.log_place(begin)
        _warn(
            f"kept: {path} at {offset}: {end - begin} bytes are a record whose queue offset cannot be right"
        )
    for topic, queue_id, before, now in done.shortened:
        _warn(f"warning: {topic}-{queue_id} ended at {before}, now at {now}: its last records are lost")
    _print_summary(done.to_json(), _objects(as_json, output))
    raise typer.Exit(EXIT_FINDINGS if done.damages or done.misplaced else EXIT_FINE)


@app.command("restore", epilog=EXIT_CODES_HELP)
def restore_command(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="Directory of the backup.")],
    former: Annotated[Path | None, typer.Argument(metavar="[STORE]", hidden=True)] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", metavar="DIR", help="Directory of the new store: missing or empty.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a store from a backup: compare every file with its SHA-256, and verify the store."""
    root = store or former  # the former place of --store, until the first release
    if root is None:
        raise typer.BadParameter("name the directory of the new store: --store DIR")
    with _failures_exit():
        manifest = restore(backup, root, _check_restored)
    summary = {
        "broker": manifest.broker,
        "createdMs": manifest.created_ms,
        "commitLogMinOffset": manifest.log_begin,
        "commitLogMaxOffset": manifest.log_end,
        "files": len(manifest.files),
        "bytes": sum(entry.data_size for entry in manifest.files),
    }
    _print_summary(summary, _objects(as_json, output))


def _check_restored(root: Path) -> None:
    """Raises TroveError STORE_FAILED if the store has findings."""
    found: list[Finding] = []
    view, findings = StoreView.open(root), Findings(found.append)
    check_config(view, findings)
    summary = verify(view, findings)
    for finding in found:
        if not finding.note:
            _warn(str(finding))
    if summary.findings:
        raise TroveError(errors.STORE_FAILED, f"the backup's store has {summary.findings} findings")


def _objects(as_json: bool, output: Format) -> ObjectFormat | None:
    """How the objects of the answer are printed; None: as text."""
    if as_json:
        return ObjectFormat.JSON
    return None if output is Format.TABLE else ObjectFormat(output.value)


def _print_summary(fields: Mapping[str, object], objects: ObjectFormat | None) -> None:
    if objects is not None:
        _print([fields], objects)
        return
    for text in summary_lines(fields):
        _line(text)


def _open(store: Path | None, config: Path | None, assignments: list[str] | None) -> _Opened:
    """Opens the store for reading; prints the error and exits if that fails."""
    try:
        loaded = load_settings(
            BrokerSettings,
            environment_prefix=ENVIRONMENT_PREFIX,
            environment={},
            config=config,
            assignments=assignments or (),
            ignored_keys=IGNORED_KEYS,
        )
    except SettingsError as error:
        for problem in error.problems:
            _warn(f"error: {problem}")
        raise typer.Exit(EXIT_USAGE) from error
    given = {name: getattr(loaded.settings, name) for name in SIZES if loaded.sources[name] != "default"}
    root = Path(loaded.settings.store) if store is None else store
    try:
        view = StoreView.open(root, given)
    except FileNotFoundError as error:
        _warn(f"error: {error}")
        raise typer.Exit(EXIT_USAGE) from error
    except (TroveError, StorageError) as error:
        _warn(f"error: {error}")
        raise typer.Exit(EXIT_USAGE if given else EXIT_FINDINGS) from error
    if view.locked:
        _warn("warning: a broker has this store open; its files may change while they are read")
    names = (assignment.partition("=") for assignment in assignments or ())
    return _Opened(root, view, {name.strip(): value.strip() for name, _, value in names})


def _warn_of_damage(view: StoreView, scan: LogScan) -> int:
    """Prints the damaged parts to standard error; returns the exit code."""
    for damage in scan.damages:
        path, offset = view.log_place(damage.physical_offset)
        size = damage.end - damage.physical_offset
        _warn(f"warning: {path} at {offset}: {size} bytes are {damage.state.value}, skipped")
    for physical_offset, problem in scan.unreadable:
        path, offset = view.log_place(physical_offset)
        _warn(f"warning: {path} at {offset}: {problem}")
    return EXIT_FINDINGS if scan.damages or scan.unreadable else EXIT_FINE


@contextmanager
def _failures_exit() -> Iterator[None]:
    """Prints the failure to standard error, and ends the command."""
    try:
        yield
    except (TroveError, StorageError, OSError) as error:
        _warn(f"error: {error}")
        illegal = isinstance(error, TroveError) and error.spec is errors.REQUEST_ILLEGAL
        raise typer.Exit(EXIT_USAGE if illegal else EXIT_FINDINGS) from error


def _print(entries: Iterable[Mapping[str, object]], objects: ObjectFormat) -> None:
    """Prints the entries one by one; with YAML all calls together print one list."""
    with _failures_exit():
        for each in entries:
            _line(json.dumps(each) if objects is ObjectFormat.JSON else _yaml_item(each))


def _yaml_item(fields: Mapping[str, object]) -> str:
    import yaml

    plain = json.loads(json.dumps(fields))  # enumerations and tuples in their JSON form
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump([plain], Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n")


def _line(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(EXIT_FINE) from None  # the reader closed the pipe


def _discard_output() -> None:
    """Discards the output that Python still has for the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None, program: str = "trovemq store") -> None:
    """Runs the command line and exits. None: with the arguments of the process. program: its name in help.
    Standard output is UTF-8 in every locale, like the output of the other verbs."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        app(args=None if arguments is None else list(arguments), prog_name=program)
    except StorageError as error:
        _warn(f"error: {error}")
        raise SystemExit(EXIT_FINDINGS) from None
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()


if __name__ == "__main__":
    main()
