"""`trovemq-pipeline JOB`: runs one job and reports its end.

Standard output has only the job's report, as one JSON object, and only when it is complete. Standard error
has the progress bar (on a terminal), notes and errors. Exit codes: report.py. The output of Spark itself,
from Java and the workers, is dropped; `--debug` shows it, and tracebacks.

Help and most errors of usage need no import of Spark.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TextIO

import typer

from trovemq.cli.lazy import WrongUsage
from trovemq_spark import arguments as job_arguments
from trovemq_spark import running
from trovemq_spark.arguments import COMMON, FieldHelp
from trovemq_spark.running import PROGRAM, Job, JobRun, usage_error

MASTER_DEFAULT: Final = "local[2]"


JOBS: Final[dict[str, Job]] = {
    "archive": Job("trovemq_spark.jobs.archive", "Copy a store's segments into Parquet, by topic and day."),
    "rebuild": Job("trovemq_spark.jobs.rebuild", "Rebuild consume queues and index files from the log."),
    "audit": Job(
        "trovemq_spark.jobs.audit", "Check the log, its queues and its index; find holes and duplicates."
    ),
    "search": Job(
        "trovemq_spark.jobs.search", "Find messages in archive, store and brokers at once.", lazy_session=True
    ),
    "trace": Job("trovemq_spark.jobs.trace", "Measure when messages are stored, delivered, acknowledged."),
    "replay": Job("trovemq_spark.jobs.replay", "Send an archive or a log to a broker again."),
    "stream": Job("trovemq_spark.jobs.stream", "Copy topics into a table, once or continuously."),
    "compact": Job("trovemq_spark.jobs.compact", "Merge many archive files into few."),
}

StoreOption = Annotated[
    str, typer.Option("--store", metavar="DIR", help="A store, or a directory of commit-log segments.")
]
ServerOption = Annotated[
    str, typer.Option("--server", metavar="HOST:PORT", help="A live nameserver or broker.")
]
ArchiveOption = Annotated[
    str, typer.Option("--archive", metavar="DIR", help="A Parquet archive; a path or URI.")
]
OutOption = Annotated[str, typer.Option("--out", metavar="DIR", help="Where results go; a path or URI.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the job (below); repeatable."),
]
MasterOption = Annotated[str, typer.Option("--master", help="Where Spark runs.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show Spark's own log, and tracebacks.")]


def main() -> None:
    """The entry point of the console script."""
    code = run(sys.argv[1:], own_process=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if running.stuck:
        os._exit(code)  # Java ends with this process
    raise SystemExit(code)


def run(command_line: Sequence[str], *, own_process: bool = False) -> int:
    """Runs one command line (without the program's name) and returns its exit code.

    own_process: this process runs only the command, so its signals and its standard error may be changed.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    named = command_line[0] if command_line and not command_line[0].startswith("-") else ""
    if named and named not in JOBS:
        return usage_error(f"there is no job {named!r}.{job_arguments.suggestion(named, list(JOBS))}")
    if own_process:
        signal.signal(signal.SIGTERM, _terminate)
        if "--debug" not in command_line:
            keep_chatter_away()
    try:
        code = _app(named)(args=list(command_line), prog_name=PROGRAM, standalone_mode=not command_line)
    except SystemExit as stop:
        code = stop.code
    except WrongUsage as error:
        return usage_error(error.format_message(), f"See `{PROGRAM} {named}".rstrip() + " --help`.")
    except (KeyboardInterrupt, typer.Abort):  # Abort: the parser's form of Ctrl-C
        return running.stopped_code()
    except BrokenPipeError:
        return 0  # the reader of the help has closed the pipe
    return code if isinstance(code, int) else 0


def keep_chatter_away() -> None:
    """From now on drops what Java and Spark's workers write to this process's standard output and error;
    Python's own sys.stdout and sys.stderr stay as they were."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = _kept(sys.stdout, nowhere, 1, "strict")
    sys.stderr = _kept(sys.stderr, nowhere, 2, "backslashreplace")
    os.close(nowhere)


def _kept(stream: TextIO, nowhere: int, number: int, on_error: str) -> TextIO:
    stream.flush()
    kept = os.dup(stream.fileno())
    os.dup2(nowhere, number)
    return os.fdopen(kept, "w", buffering=1, encoding=stream.encoding, errors=on_error)


def _terminate(number: int, _frame: object) -> None:
    """As Ctrl-C, for which Spark has a handler that cancels its jobs; only the exit code differs."""
    running.stopped_by.append(number)
    signal.raise_signal(signal.SIGINT)


# --- the command tree ---------------------------------------------------------------------------------


def _app(named: str) -> typer.Typer:
    """A command for each job; the named one shows its settings in its help."""
    app = typer.Typer(
        name=PROGRAM,
        help="TroveMQ's data pipeline: jobs over a store, a live broker, or an archive.",
        epilog=f"{PROGRAM} JOB --help lists a job's settings. Exit code: 0 done, 1 findings, 2 wrong usage, "
        "3 failed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_no_options)
    for name, job in JOBS.items():
        epilog = _settings_help(job) if name == named else None
        app.command(name, help=job.summary, epilog=epilog)(_command(name, job))
    return app


def _no_options() -> None:
    """All options are those of the jobs."""


def _command(name: str, job: Job) -> Callable[..., None]:
    def command(
        store: StoreOption = "",
        server: ServerOption = "",
        archive: ArchiveOption = "",
        out: OutOption = "",
        set_: SetOption = None,
        master: MasterOption = MASTER_DEFAULT,
        debug: DebugOption = False,
    ) -> None:
        given = {"store": store, "server": server, "archive": archive, "out": out}
        common = {key: value for key, value in given.items() if value}
        raise typer.Exit(JobRun(name, job, master, debug).run(common, set_ or []))

    return command


def _settings_help(job: Job) -> str:
    """The job's fields as a table, which click must not wrap (\\b)."""
    fields = job_arguments.fields_of(job_arguments.arguments_class(job.module))
    width = min(shutil.get_terminal_size().columns, 110) - 4
    taken = [field.name for field in fields if field.name in COMMON]
    blocks = [
        "\b\nSettings, by --set NAME=VALUE:",
        *(_field_help(f, width) for f in fields if f.name not in COMMON),
    ]
    blocks.append("Takes " + ", ".join(f"--{name}" for name in taken) + ".")
    return "\n\n".join(blocks)


def _field_help(field: FieldHelp, width: int) -> str:
    default, value = ", needed", field.default
    if not field.is_required:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        default = "" if value in ("", (), None) else f", else {shown}"
    lines = textwrap.wrap(field.text, width - 4)
    return "\n".join(["\b", f"{field.name} ({field.type}{default})", *(f"    {line}" for line in lines)])


if __name__ == "__main__":
    main()
