"""Writes the pages of reference from the tables in the code; `--check` only compares them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trovemq_broker.daemon.rocketmq_keys import IGNORED_KEYS as IGNORED_BROKER_KEYS
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.security.actions import action_text
from trovemq_broker.server.access.needs import Row
from trovemq_broker.server.remoting.rights import NATIVE, SHOWN
from trovemq_broker.server.remoting.rights import ROWS as REMOTING_ROWS
from trovemq_daemon.setting_report import format_reference
from trovemq_nameserver.remoting import RemotingRoutes
from trovemq_nameserver.routes import RouteLimits
from trovemq_nameserver.service import Registry
from trovemq_nameserver.settings import IGNORED_KEYS as IGNORED_NAMESERVER_KEYS
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto import errors
from trovemq_proto.remoting.codes import RequestCode
from trovemq_proto.remoting.fields import Fields
from trovemq_proto.remoting.headers import Header
from trovemq_proto.remoting.refused import REFUSED
from trovemq_spark import report
from trovemq_spark.arguments import COMMON, FieldHelp, arguments_class, fields_of
from trovemq_spark.cli import JOBS
from trovemq_spark.sinks import options as sink_options
from trovemq_spark.sources import option_table
from trovemq_spark.table import schema

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Made by `make docs`; change the table in the code, not this page. -->"

GROUPS = {
    1: "The caller's input",
    2: "Something is missing, or exists already",
    3: "The state of the store",
    4: "The cluster",
    5: "The service",
}


def errors_page() -> str:
    return "\n".join(errors_lines()) + "\n"


def errors_lines() -> Iterator[str]:
    yield from ("# Errors", "", NOTE, "")
    yield "Every process and client uses this table; `trovemq errors NAME` shows a row. Codes never change."
    yield "They are TroveMQ's: E404 has nothing to do with HTTP's 404. JSON has the number alone (`code`)."
    yield "A unary call ends with the row's gRPC status, and has the whole error, serialised, in the"
    yield "trailing metadata key `trovemq-error-bin`; on a stream the error is a field of the reply frame."
    group = 0
    for row in errors.ERRORS:
        if row.code // 100 != group:
            group = row.code // 100
            yield from ("", f"## {group}xx: {GROUPS[group]}")
        yield from ("", f"### {row.symbol}", "")
        again = "the same call may succeed later" if row.retriable else "the same call fails again"
        yield f"{row.number}, gRPC status `{row.grpc_status}`; {again}."
        yield ""
        yield row.meaning
        yield ""
        yield f"*What to do:* {row.what_to_do}"


SETTINGS_INTRODUCTION = """# Settings

{note}

A daemon takes its settings from five places; the later one wins:

1. the default,
2. a file given with `--config` (TOML; for a broker also RocketMQ's `broker.conf`),
3. the environment: the prefix and the name in capitals, for example `TROVEMQ_BROKER_FLUSH_MODE=async`,
4. `--set NAME=VALUE`, repeatable,
5. the setting's own option, if it has one, such as `--listen`.

A setting may be given by our name or by RocketMQ's name, but not by both in one place. An unknown name is an
error. A setting of RocketMQ that is not implemented here is ignored with a warning. `--print-config` shows
each setting with its source.

In the column `change`, `restart` means that a change applies after a restart. A `live` setting can also be
changed with `trovemq config set` ([how](operate.md#change-a-setting)).

Sizes take `KiB`, `MiB` and `GiB`, times `ms`, `s`, `min` and `h`: `--set commit_log_file_size=64MiB`.
"""


def listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys, key=str.casefold))


def settings_page() -> str:
    return "\n".join(
        (
            SETTINGS_INTRODUCTION.format(note=NOTE),
            "## Broker: `TROVEMQ_BROKER_…`\n",
            format_reference(BrokerSettings),
            "## Nameserver: `TROVEMQ_NAMESERVER_…`\n",
            format_reference(NameserverSettings),
            "## RocketMQ's broker settings that are ignored with a warning\n",
            f"{listed(IGNORED_BROKER_KEYS)}\n",
            "## RocketMQ's nameserver settings that are ignored with a warning\n",
            f"{listed(IGNORED_NAMESERVER_KEYS)}\n",
        )
    )


# --- the pipeline -------------------------------------------------------------------------------------

PIPELINE_INTRODUCTION = """# Options of the pipeline

{note}

This page lists the columns, the options of the formats, and the settings of the jobs. [The
tutorial](pipeline.md) shows how to use them. They are all checked before anything is read: an unknown
name or an illegal value is an error that suggests the right one.
"""

SOURCES_INTRODUCTION = """## Reading: formats `trovemq` and `trovemq-log`

`spark.read.format("trovemq-log").option("path", …).load()`, and `readStream`. Names may be written in any
case of letters. An option with a format in the column *formats* belongs only to that format, and one with
`batch` or `stream` in the column *in* only to that kind of query.
"""

SINK_INTRODUCTION = """## Writing: format `trovemq`

`rows.write.format("trovemq").mode("append").option("nameServer", …).save()`, and `writeStream`.
"""

JOBS_INTRODUCTION = """## Jobs

Run a job by `trovemq-pipeline JOB --set NAME=VALUE …`. The settings {common} have
separate options, `--store` and so on. Every job takes `--master` (where Spark runs, `local[2]`) and
`--debug` (shows Spark's own log, and tracebacks). In Python the settings are the fields of the job's
dataclass, and `run(session, arguments, progress)` of `trovemq_spark.jobs.JOB` runs the job.

Sizes take `KiB`, `MiB`, `GiB`; times `ms`, `s`, `min`, `h`. Timestamps are written `2025-01-31T12:00:00Z`,
lists with commas.
"""


def pipeline_page() -> str:
    """Needs no Spark: jobs are read as text."""
    lines = [PIPELINE_INTRODUCTION.format(note=NOTE)]
    lines += ["## Columns\n", *documented_table(schema.__doc__, columns=3), ""]
    lines += [SOURCES_INTRODUCTION, *source_option_rows(), ""]
    lines += ["For the names of other connectors, the error suggests ours:", foreign_names(), ""]
    lines += [SINK_INTRODUCTION, *sink_option_rows(), "", *sink_column_rows(), ""]
    lines.append(JOBS_INTRODUCTION.format(common=listed(COMMON)))
    for name, job in JOBS.items():
        lines += [f"### {name}\n", f"{job.summary}\n", *job_rows(job.module), ""]
    lines += ["## Exit codes\n", *documented_table(report.__doc__, columns=3)]
    return "\n".join(lines) + "\n"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def heading(*cells: str) -> list[str]:
    return [row(*cells), "| --- " * len(cells) + "|"]


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def documented_table(text: str | None, columns: int) -> Iterator[str]:
    """The table that a module's docstring has; a row of one cell is a heading inside it."""
    assert text is not None
    rows = [line.strip() for line in text.splitlines() if line.startswith("|")]
    yield rows[0]
    yield "| --- " * columns + "|"
    for line in rows[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield (
            as_code(line)
            if len(cells) == columns
            else row(f"*{cells[0].rstrip(':')}*", *[""] * (columns - 1))
        )


def as_code(text: str) -> str:
    """Types such as map<string,string> look like HTML to Markdown."""
    return re.sub(r"\w+<[\w,]+>", lambda match: f"`{match[0]}`", text)


def source_option_rows() -> Iterator[str]:
    yield from heading("option", "formats", "in", "value", "default", "meaning")
    for option in option_table.OPTIONS:
        names = " or ".join(code(name) for name in (option.name, *option.aliases))
        formats = "" if len(option.sources) == 2 else code(option.sources[0])
        mode = "" if len(option.modes) == 2 else option.modes[0]
        yield row(names, formats, mode, option.kind.name, code(option.default), option.meaning)


def foreign_names() -> str:
    pairs = (f"`{theirs}` is `{ours}`" for theirs, ours in option_table.FOREIGN_NAMES.items())
    return ", ".join(pairs) + "."


def sink_option_rows() -> Iterator[str]:
    yield from heading("option", "value", "default", "meaning")
    for option in sink_options.OPTIONS:
        yield row(code(option.name), option.kind.name, code(option.default), option.meaning)


def sink_column_rows() -> Iterator[str]:
    yield from heading("column of a row", "type")
    for name, (words, _) in sink_options.COLUMNS.items():
        yield row(code(name) + (" (required)" if name == "body" else ""), as_code(words))


def job_rows(module: str) -> Iterator[str]:
    yield from heading("setting", "type", "default", "meaning")
    for field in fields_of(arguments_class(module)):
        yield row(code(field.name), kind_of(field.type), default_of(field), field.text)


def kind_of(annotation: str) -> str:
    """A field's type as the command line takes it."""
    annotation = annotation.removesuffix(" | None")
    if annotation.startswith("Literal["):
        return " | ".join(ast.literal_eval(annotation.removeprefix("Literal")))
    kinds = {"str": "text", "int": "number", "float": "number", "bool": "true | false"}
    return kinds[annotation] if annotation in kinds else {"tuple[str, ...]": "list"}[annotation]


def default_of(field: FieldHelp) -> str:
    value = field.default
    if field.is_required:
        return "required"
    return (
        "" if value in ("", (), None) else code(str(value).lower() if isinstance(value, bool) else str(value))
    )


# --- remoting -----------------------------------------------------------------------------------------

REMOTING_INTRODUCTION = """# Requests of RocketMQ's remoting protocol

{note}

With `remoting_enable`, a broker and a nameserver answer the requests on this page, which has RocketMQ's codes
and names ([how to use it](how-to/move-from-rocketmq.md)). They answer every other code at once with code 3
and ` request type N not supported`, and [the reason](#refused-requests) where there is one.

The column *right at the broker* says which rights a user needs, as in the [rules of users](security.md):
one of the actions on the resource. `as its calls` means that the broker carries out the request by calls of
TroveMQ's services, and needs the rights and writes the audit records of these calls. `names` means that the
answer has only the names that the caller may know. A nameserver needs no rights, but shows its
settings (`mqadmin getNamesrvConfig`) and accepts changes (`updateOrderConf`, `wipeWritePerm`) only on its own
machine.
"""
REFUSED_INTRODUCTION = """## Refused requests

The answer to these has the reason in its remark. POP is refused because only a push consumer of 5.x with
`setClientRebalance(false)` sends it. The same clients consume by pulls with the default, and programs that
want POP have it by gRPC.
"""
SAMPLE_HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}],'
    b'"consumerGroup":"g","clientId":"c"}'
)


def remoting_page() -> str:
    at_nameserver = RemotingRoutes(Registry(RouteLimits(), 1, lambda: 0)).handlers
    lines = [REMOTING_INTRODUCTION.format(note=NOTE), *heading("code", "name", "at", "right at the broker")]
    for request in sorted({*REMOTING_ROWS, *at_nameserver}):
        places = ("broker", request in REMOTING_ROWS), ("nameserver", request in at_nameserver)
        known = REMOTING_ROWS.get(request)
        right = "" if known is None else remoting_right(request, known)
        where = ", ".join(name for name, is_at in places if is_at)
        lines.append(row(str(request), RequestCode(request).name, where, right))
    sent = ", ".join(f"{RequestCode(one).name} ({one})" for one in (39, 40, 220, 221, 307, 309, 326))
    lines += ["", f"A broker sends to its clients: {sent}.", "", REFUSED_INTRODUCTION]
    lines += heading("code", "name", "why it is refused")
    lines += (row(str(number), refused.name, refused.why) for number, refused in sorted(REFUSED.items()))
    return "\n".join(lines) + "\n"


def remoting_right(request: int, known: Row) -> str:
    if known is NATIVE:
        return "as its calls"
    if known is SHOWN:
        return "every user; names"
    if not callable(known.needs):
        return {"user": "every user", "super": "super users", "open": "none"}[known.needs.value]
    fields = dict.fromkeys(("topic", "b", "originTopic", "group", "consumerGroup", "srcGroup"), "x")
    sample: Any = SimpleNamespace(header=Header(request, fields=fields), body=SAMPLE_HEARTBEAT)
    sample.fields = Fields(fields)
    needs = known.needs(sample)
    return " and ".join(f"{need.kind} {action_text(need.actions).replace(',', ' or ')}" for need in needs)


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "pipeline-options.md": pipeline_page,
    "remoting.md": remoting_page,
    "settings.md": settings_page,
}


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
