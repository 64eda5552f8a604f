"""`trovemq store verify` and the other tools for the store of a stopped broker, as the command line starts
them."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

from tests.support.golden import unpack
from trovemq.cli import app
from trovemq.cli.store_tools import TOOLS, WITH_JSON


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack("small", tmp_path)


def test_a_tool_gets_all_arguments_after_its_verb(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["store", "verify", "--json", "--store", str(store)]) == 0
    (summary,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (summary["records"] > 0, summary["findings"]) == (True, 0)
    assert app.run(["store", "dump", "records", "--store", str(store), "--begin", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == summary["records"]


def test_json_before_the_verbs_holds_for_each_tool(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in WITH_JSON[:2]:
        assert app.run(["--json", "store", name, "--store", str(store)]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert app.run(["--json", "store", "export", "--store", str(store)]) == 0
    assert all(json.loads(line) for line in capsys.readouterr().out.splitlines())


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
