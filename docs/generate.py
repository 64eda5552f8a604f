"""Writes docs/settings.md and docs/errors.md from the tables in the code; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from broker.rocketmq_keys import IGNORED_KEYS as IGNORED_BROKER_KEYS
from broker.settings import BrokerSettings
from nameserver.settings import IGNORED_KEYS as IGNORED_NAMESERVER_KEYS
from nameserver.settings import NameserverSettings
from trovemq_daemon.setting_report import format_reference
from trovemq_proto import errors

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Made by `make docs`; change the table in the code, not this page. -->"

GROUPS = {
    1: "The caller's input",
    2: "Something is not there, or is there already",
    3: "The state of the store",
    4: "The cluster",
    5: "The service",
}


def errors_page() -> str:
    return "\n".join(errors_lines()) + "\n"


def errors_lines() -> Iterator[str]:
    yield from ("# Errors", "", NOTE, "")
    yield "Every process and client uses this one table; `trovemq errors NAME` shows a row. Codes stay."
    yield "A unary call ends with the gRPC status of the row and carries the whole error, serialised, in the"
    yield "trailing metadata key `trovemq-error-bin`; on a stream it is a field of the answering frame."
    group = 0
    for row in errors.ERRORS:
        if row.code // 100 != group:
            group = row.code // 100
            yield from ("", f"## {group}xx: {GROUPS[group]}")
        yield from ("", f"### {row.symbol}", "")
        again = "the same call may succeed later" if row.retriable else "the same call fails again"
        yield f"{row.code}, gRPC status `{row.grpc_status}`; {again}."
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
4. `--set NAME=VALUE`, as often as needed,
5. an option of its own, such as `--listen`.

A value may be given by our name or by RocketMQ's, but in one place not by both. An unknown name is an
error. A name of RocketMQ that is not implemented here gives one warning and is ignored. `--print-config`
shows each setting with its source.

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


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors_page, "settings.md": settings_page}


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
