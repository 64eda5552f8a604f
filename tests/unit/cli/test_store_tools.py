"""`trovemq store verify` and the other tools for the store of a stopped broker, as the command line starts
them."""

from __future__ import annotations

import io
import json
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest
import yaml

from tests.support.backups import back_up, fill
from tests.support.engine import NOW_MS, flush, open_store, send
from tests.support.golden import unpack
from trovemq.cli import app
from trovemq.cli.store_tools import TOOLS
from trovemq_store.files.real import RealFileSystem


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack("small", tmp_path)


def test_a_tool_gets_all_arguments_after_its_verb(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["store", "verify", "--json", "--store", str(store)]) == 0
    (summary,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (summary["records"] > 0, summary["findings"]) == (True, 0)
    assert app.run(["store", "dump", "records", "--store", str(store), "--begin", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == summary["records"]


def make_backup(root: Path, directory: Path) -> None:
    opened = open_store(RealFileSystem(root), topics=("orders",))
    fill(opened, 3)
    flush(opened)
    opened.flush_projections()
    back_up(opened, root, directory)
    opened.close(NOW_MS)


LINES = [
    ["verify"],
    ["dump", "records", "--begin", "0"],
    ["dump", "consumequeue", "AlfaOrders", "0"],
    ["dump", "index"],
    ["dump", "checkpoint"],
    ["export"],
    ["repair"],
    ["restore"],
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: "-".join(line[:2]))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_store_tool_printed_text_where_yaml_was_asked_for(
    line: list[str], after: bool, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup"
    if line == ["restore"]:
        make_backup(tmp_path / "source", backup)
    answers = []
    for format_ in ("json", "yaml"):
        places = [str(backup), str(tmp_path / format_)] if line == ["restore"] else ["--store", str(store)]
        option = ["-o", format_]
        given = ["store", *line, *places]
        assert app.run([*given, *option] if after else [*option, *given]) == 0
        answers.append(capsys.readouterr().out)
    in_json, in_yaml = answers
    assert yaml.safe_load(in_yaml) == [json.loads(text) for text in in_json.splitlines()]


@pytest.mark.parametrize("name", TOOLS)
def test_a_store_tool_has_no_bodies_to_print(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["-o", "body", "store", name, "a", "b"]) == 2


@pytest.mark.parametrize("name", TOOLS)
def test_the_help_of_each_tool_names_it_as_it_is_called(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["store", name, "--help"]) == 0
    assert f"Usage: trovemq store {name} " in capsys.readouterr().out
    assert app.run(["store", name, "--no-such-option"]) == 2


@pytest.mark.parametrize("name", TOOLS)
def test_without_the_server_each_tool_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    assert app.run(["store", name, "--store", "nowhere"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"trovemq store {name} needs the broker's tools: pip install 'trovemq[server]'\n"


def test_yaml_of_a_store_failed_in_a_locale_without_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_store(RealFileSystem(tmp_path), topics=("orders",))
    send(opened, b"pears", keys="gr\xfcn")
    flush(opened)
    opened.close(NOW_MS)
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert app.run(["-o", "yaml", "store", "export", "--store", str(tmp_path)]) == 0
    sys.stdout.flush()
    (message,) = yaml.safe_load(printed.getvalue())
    assert message["keys"] == "gr\xfcn"
