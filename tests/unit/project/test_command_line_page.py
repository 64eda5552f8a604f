"""docs/command-line.md names every verb, no option that a verb does not have, and every exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trovemq.cli.app import command_tree
from trovemq.cli.lazy import UnloadedVerb, load
from trovemq_daemon.lifecycle import ExitCode

PAGE = (Path(__file__).resolve().parents[3] / "docs/command-line.md").read_text(encoding="utf-8")
VERBS_TABLE = PAGE.split("## Verbs", 1)[1].split("\n## ", 1)[0]


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Every verb with its options."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None or command.invoke_without_command:
        yield (
            " ".join(path),
            {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)},
        )
    for name, subcommand in (subcommands or {}).items():
        loaded = load(subcommand.verb) if isinstance(subcommand, UnloadedVerb) else subcommand
        yield from verbs(loaded, (*path, name))


VERBS = dict(verbs(command_tree()))


def test_every_verb_stands_on_the_page() -> None:
    assert len(VERBS) > 70
    assert [verb for verb in VERBS if not re.search(rf"`{verb}\b", VERBS_TABLE)] == []


def test_no_option_is_made_up() -> None:
    rows = [line for line in VERBS_TABLE.splitlines() if line.startswith("| `")]
    assert rows
    assert {row: made_up for row in rows if (made_up := made_up_options(row))} == {}


def made_up_options(row: str) -> set[str]:
    named = [verb for verb in VERBS if re.search(rf"`{verb}\b", row.split("|")[1])]
    assert named, f"a row without a verb that exists: {row}"
    known = set().union(*(VERBS[verb] for verb in named))
    return set(re.findall(r"(?<!\w)--[a-z-]+", row)) - known


def test_every_exit_code_stands_on_the_page() -> None:
    table = PAGE.split("| exit code |", 1)[1]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)} == set(ExitCode)
