"""`-o json` and `-o yaml`: every command that lists or reports prints objects, and the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.unit.cli.conftest import CommandLine, FakeClient
from tests.unit.cli.test_lists import VERBS as LISTS
from tests.unit.cli.test_lists import Answering
from tests.unit.cli.test_misuse import leaves
from trovemq.cli.app import command_tree
from trovemq.cli.store_tools import TOOLS

LINES: Final = (
    "send orders body",
    "produce orders FILE",
    "pull orders --queue 0",
    "tail orders -n 1 --no-follow",
    "get orders 0 0",
    "query orders k",
    "recall orders good",
    "topic create paid",
    "topic alter orders --queues 9",
    "topic delete orders --yes",
    "group create ship",
    "group alter billing --retry-max 1",
    "group describe billing",
    "group delete billing --yes",
    "group offset commit billing orders 0 0",
    "group offset get billing orders 0",
    "context create there 127.0.0.1:8081",
    "context list",
    "user create bob",
    "acl allow alice Pub Topic:orders",
    "cert ca --dir DIR",
    "bench fetch orders",
)
NO_OBJECTS: Final = {"server", "nameserver", "console", *(f"store {name}" for name in TOOLS)}
"""Separate programs; the tools of a stopped store are in test_store_tools.py."""


def test_every_command_has_the_option() -> None:
    without = {
        path
        for path, command in leaves(command_tree())
        if not any("--output" in parameter.opts for parameter in command.params)
    }
    assert without == NO_OBJECTS


def objects_of(run: CommandLine, line: str, format_: str, tmp_path: Path) -> Any:
    paths = {"FILE": tmp_path / "bodies", "DIR": tmp_path / format_}
    ran = run(*(str(paths.get(word, word)) for word in line.split()), "-o", format_)
    assert ran.code == (1 if line == "store scrub" else 0), ran.err  # a scrub that finds damage
    return ran.objects if format_ == "json" else yaml.safe_load(ran.out)


@pytest.mark.parametrize("line", LINES)
def test_an_answer_in_yaml_has_the_fields_of_the_answer_in_json(
    line: str, run: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "bodies").write_text("a\nb\n")
    answers = []
    for format_ in ("json", "yaml"):
        run.client = FakeClient(topics={"orders": 2})
        run("send", "orders", "body", "--key", "k", "--queue", "0")
        for before in ("group create billing", "user create alice", "context create here 127.0.0.1:8081"):
            assert run(*before.split()).code == 0
        answers.append(objects_of(run, line, format_, tmp_path))
    in_json, in_yaml = answers
    assert in_json
    assert [sorted(fields) for fields in in_yaml] == [sorted(fields) for fields in in_json]


@pytest.mark.parametrize("line", LISTS)
def test_a_list_in_yaml_is_the_list_in_json(line: str, run: CommandLine, tmp_path: Path) -> None:
    answering: Any = Answering()
    run.client = answering
    assert objects_of(run, line, "yaml", tmp_path) == objects_of(run, line, "json", tmp_path)
