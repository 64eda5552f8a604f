"""The blocks of docs/how-to run, in order, against one broker, and print the text below them.

| block  | treatment                                                                                       |
|--------|-------------------------------------------------------------------------------------------------|
| python | runs as in `python -m asyncio`: `await` at the top; all blocks of a page share their names      |
| sh     | each line runs in this process: `trovemq`; a console is started and gives its first page;       |
|        | promtool runs where it is to be had; of a daemon's own command, its settings are read           |
|        | (`--print-config`); a broker with a TLS port, and a local cluster, run to the end of the page   |
| toml   | is the file broker.toml of the lines below it                                                   |
| json   | is JSON, for another program                                                                    |
| text   | is the output of the block above, also with other spaces between words; `…` means anything      |
| java   | is not run here: the conformance suites of the clients do it                                    |

The port, the store and the directories are others than those of the pages.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.event_loop import EventLoop
from tests.support.golden import load_manifest, unpack
from tests.support.prometheus_here import programs
from trovemq.cli import app
from trovemq.testing import BrokerProcess, free_port
from trovemq_broker.__main__ import main as broker_main
from trovemq_nameserver.__main__ import main as nameserver_main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs" / "how-to").glob("*.md")), ROOT / "docs" / "security.md"]
OTHERS = {
    "faststream",
    "grow-and-shrink",
    "install",
    "one-configuration",
    "keep-a-second-copy",
    "fail-over",
    "what-happens-when",
    "replace-a-machine",
    "upgrade-without-a-stop",
}
PAGES_OF_ONE = [page for page in PAGES if page.stem not in OTHERS]
"""The pages that need one broker; a test with the name of each other page runs it."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:8081"
TLS_ADDRESS = "127.0.0.1:8082"
BACKUPS = "/backups"
KINDS = {"python", "sh", "toml", "text", "java", "json"}
LINES_MAX = 90


@dataclass(frozen=True)
class Block:
    kind: str
    line: int
    """Of the page."""
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield Block(match[1], text.count("\n", 0, match.start()) + 2, match[2])


@dataclass
class Reader:
    """A reader who follows a page, in a separate directory."""

    page: Path
    broker: BrokerProcess
    directory: Path
    runner: asyncio.Runner
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""
    server: str = ""
    """Of command lines; else the broker."""
    rows: list[list[str]] = field(default_factory=list)
    """Of a local cluster's table."""
    daemons: ExitStack = field(default_factory=ExitStack)
    tls_port: int = field(default_factory=free_port)
    monkeypatch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def follow(self) -> None:
        for block in blocks(self.page):
            place = f"{self.page.name}:{block.line}"
            if block.kind == "text":
                assert matches(block.text, self.printed), f"{place}: {self.printed}"
            elif block.kind == "java":
                continue
            elif block.kind == "toml":
                (self.directory / "broker.toml").write_text(block.text, encoding="utf-8")
            elif block.kind == "json":
                json.loads(block.text)
            else:
                printed = io.BytesIO()
                out = io.TextIOWrapper(printed, "utf-8", write_through=True)
                with redirect_stdout(out), redirect_stderr(io.StringIO()) as err:
                    problem = self.run(block)
                self.printed = printed.getvalue().decode()
                assert not problem, f"{place}: {problem}\n{self.printed}{err.getvalue()}"

    def run(self, block: Block) -> str:
        """The error; "" for none."""
        if block.kind == "python":
            self.runner.run(self.python(self.here(block.text), block.line))
            return ""
        return "; ".join(line for line in block.text.splitlines() if self.command(shlex.split(line)) != 0)

    def here(self, text: str) -> str:
        """With the addresses of this test's brokers."""
        return text.replace(ADDRESS, self.broker.address).replace(TLS_ADDRESS, f"127.0.0.1:{self.tls_port}")

    def start_cluster(self, words: list[str]) -> int:
        """Prints its table. Later commands use its nameserver."""
        # However full the machine's disk is.
        settings = ["--set", "commit_log_file_size=16MiB", "--set", "disk_warning_percent=100"]
        command = [sys.executable, "-m", "trovemq.cli", *words[1:], *settings]
        process = subprocess.Popen(command, cwd=self.directory, stdout=subprocess.PIPE, text=True)
        self.daemons.callback(end, process)
        assert process.stdout is not None
        brokers = int(words[words.index("--nodes" if "--nodes" in words else "--brokers") + 1])
        rows = [process.stdout.readline() for _ in ("titles", "nameserver", *range(brokers))]
        sys.stdout.writelines(rows)
        self.rows = [row.split() for row in rows]
        self.server = self.rows[1][3]
        return process.poll() or 0

    def start_tls_broker(self, words: list[str]) -> None:
        store = self.directory / "tls-store"
        arguments = [*words[2:], "--tls-listen", f"127.0.0.1:{self.tls_port}"]
        self.daemons.enter_context(BrokerProcess(store=store, arguments=arguments))

    async def python(self, text: str, line: int) -> None:
        """A traceback names the line of the page."""
        code = compile("\n" * (line - 1) + text, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)
        if inspect.iscoroutine(result):  # the block awaits
            await result

    def command(self, words: list[str]) -> int:
        words = [self.here(word.replace(BACKUPS, str(self.directory.parent / "backups"))) for word in words]
        if words[:2] == ["trovemq", "console"]:
            return console_answers(words[2:])
        if words[:3] == ["trovemq", "cluster", "local"]:
            return self.start_cluster(words)
        if words[:2] == ["trovemq", "server"]:
            settings = self.directory / "broker.toml"
            if settings.exists() and "tls_listen" in settings.read_text(encoding="utf-8"):
                self.start_tls_broker(words)
            return exit_code(broker_main, [*words[1:], "--print-config"])
        if words[:2] == ["trovemq", "nameserver"]:
            return exit_code(nameserver_main, [*words[1:], "--print-config"])
        if words[0] == "promtool":
            return promtool(words[1:])
        if words[0] == "export":
            self.monkeypatch.setenv(*words[1].split("="))
            return 0
        assert words[0] == "trovemq"
        return command_line(["--server", self.server or self.broker.address, *words[1:]])


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()
    assert process.returncode == 0


def promtool(arguments: list[str]) -> int:
    """In the tree's own directory; nothing where no Prometheus is to be had."""
    try:
        program = programs().promtool
    except pytest.skip.Exception:
        return 0
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, check=False).returncode


def console_answers(arguments: list[str]) -> int:
    """Starts a console on a free port, and asks for its first page."""
    place = ["--listen", f"127.0.0.1:{free_port()}"]
    command = [sys.executable, "-m", "trovemq_console.command", *arguments, *place]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().rpartition(" ")[2].strip()
        try:
            with urlopen(url, timeout=20) as reply:
                return int("Overview" not in reply.read().decode())
        finally:
            process.terminate()


def command_line(arguments: list[str]) -> int:
    """Without asyncio's log: gRPC calls back into the loops of earlier commands, which are closed."""
    log = logging.getLogger("asyncio")
    log.disabled = True
    try:
        return app.run(arguments)
    finally:
        log.disabled = False


def exit_code(main: Callable[[], None], arguments: list[str]) -> int:
    """Of a program that takes its arguments from the process's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as stop:
            main()
    return stop.value.code if isinstance(stop.value.code, int) else 0


def matches(expected: str, printed: str) -> bool:
    pattern = re.escape(" ".join(expected.split())).replace("…", ".*")
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("how-to")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[BrokerProcess]:
    (place / "backups").mkdir()
    with BrokerProcess(store=place / "store", backup_root=place / "backups") as broker:
        yield broker


@pytest.mark.parametrize("page", PAGES_OF_ONE, ids=[page.stem for page in PAGES_OF_ONE])
def test_the_blocks_of_the_page_run(
    page: Path, broker: BrokerProcess, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = place / page.stem
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "200")  # tables are as wide as their terminal
    if page.stem == "upgrade":  # a stopped store, and RocketMQ's settings of it
        unpack("small", here).rename(here / "data")
        settings = load_manifest("small")["brokerConfig"]
        (here / "broker.conf").write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        reader = Reader(page, broker, here, runner, monkeypatch=monkeypatch)
        with reader.daemons:
            reader.follow()


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_page_is_short_and_says_its_limits(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES_MAX
    assert "\n## Limits\n" in text
    assert {block.kind for block in blocks(page)} <= KINDS
