"""docs/pipeline.md: each block runs, in order, and prints the text below it; the README's example, too.

| block  | treatment                                                                                     |
|--------|-----------------------------------------------------------------------------------------------|
| python | runs; all of them in one program                                                              |
| sh     | each line is a command line of `trovemq-pipeline`, run in this process with the same session; |
|        | its exit code is 0, or that of a comment `# exit code 1`                                      |
| text   | is the output of the block above it                                                           |
| json   | is a part of the report that the last line above it prints: the report has all of it          |

Directories and the broker's port are others than those of the page.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delivery import Engine
from tests.support.own_store import write_store
from trovemq.testing import free_port
from trovemq_proto.positions import QueueId
from trovemq_spark import cli, session
from trovemq_store.engine.record_writer import NewRecord

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipeline.md"
PROGRAM = ".venv/bin/trovemq-pipeline "
DIRECTORY = "build/tutorial"
PORT = "8081"


@dataclass(frozen=True)
class Block:
    kind: str
    line: int
    """Of the page."""
    text: str


def blocks() -> Iterator[Block]:
    page = PAGE.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        yield Block(match[1], page.count("\n", 0, match.start()) + 2, match[2])


def test_every_block_is_of_a_kind_that_is_run_or_compared() -> None:
    kinds = [block.kind for block in blocks()]
    assert set(kinds) == {"python", "sh", "text", "json"}
    for above, below in pairwise(kinds):
        assert below != "json" or above == "sh"
        assert below != "text" or above == "python"


def test_the_blocks_run_in_order_and_print_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "make_session", lambda *_args, **_options: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    port = str(free_port())
    names: dict[str, Any] = {"__name__": "tutorial"}
    said = ""
    try:
        for block in blocks():
            text = block.text.replace(DIRECTORY, str(tmp_path)).replace(PORT, port)
            place = f"{PAGE.name}:{block.line}"
            if block.kind == "text":
                assert said == text, place
            elif block.kind == "json":
                assert_part(json.loads(text), json.loads(said.splitlines()[-1]), place)
            else:
                with redirect_stdout(io.StringIO()) as shown:
                    run_sh(text, place) if block.kind == "sh" else run_python(text, block.line, names)
                said = shown.getvalue()
    finally:
        if "broker" in names:
            names["broker"].close()


def test_the_readmes_example_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands, but for the directory of the store."""
    monkeypatch.setattr(session, "make_session", lambda *_args, **_options: spark)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(from trovemq_spark.*?)```", readme, flags=re.DOTALL)
    assert '"data"' in example
    engine = Engine(topic="flights", queue_count=1)
    for delay in (1, 2, 6):
        body = json.dumps({"carrier": "AA" if delay == 1 else "UA", "dep_delay": delay}).encode()
        engine.writer.append(
            [NewRecord("flights", QueueId(0), body, {}, born_timestamp=engine.now_ms)], engine.now_ms
        )
    engine.store.close(engine.now_ms)
    store = write_store(engine.files, tmp_path / "store")
    exec(example.replace('"data"', repr(str(store))), {})
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells == [["carrier", "avg(dep_delay)"], ["AA", "1.0"], ["UA", "4.0"]]


def run_python(text: str, line: int, names: dict[str, Any]) -> None:
    """A traceback names the line of the page."""
    exec(compile("\n" * (line - 1) + text, str(PAGE), "exec"), names)


def run_sh(text: str, place: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        assert line.startswith(PROGRAM), place
        reported = re.search(r"# exit code (\d)$", line)
        assert cli.run(shlex.split(line.removeprefix(PROGRAM), comments=True)) == int(
            reported[1] if reported else 0
        ), place


def assert_part(part: Any, whole: Any, place: str) -> None:
    """Whatever `part` has, `whole` has; lists are as long as each other."""
    if isinstance(part, dict):
        for name, value in part.items():
            assert name in whole, place
            assert_part(value, whole[name], f"{place} {name}")
    elif isinstance(part, list):
        assert len(part) == len(whole), (place, whole)
        for number, value in enumerate(part):
            assert_part(value, whole[number], f"{place}[{number}]")
    else:
        assert part == whole, place
