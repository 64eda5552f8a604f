"""Every verb with failing calls, wrong addresses and Ctrl-C: one error and the right exit code."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trovemq
from tests.unit.cli.conftest import FakeClient
from trovemq import BrokerInfo
from trovemq.cli import app
from trovemq.cli.app import command_tree
from trovemq.cli.lazy import UnloadedVerb, load
from trovemq.cli.store_tools import TOOLS
from trovemq.client import connect
from trovemq.models.cluster import BrokerRoute, ClusterState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

# Verbs that ask no server, or are one (the console is tried in tests/unit/console and tests/integration).
LOCAL = {"errors", "server", "nameserver", "console", "biography"}
LOCAL |= {"cluster local"}  # starts daemons: tests/integration/test_cluster_local.py
LOCAL |= {"mcp"}  # serves an agent: tests/integration/test_mcp.py
LOCAL |= {"verify check"}  # reads its ledger first: test_verify.py
LOCAL |= {"doctor"}  # reports failures as findings: test_doctor.py
LOCAL |= {f"store {name}" for name in TOOLS}  # of a stopped store: test_store_tools.py
LOCAL_GROUPS = ("context ", "cert ")
REQUIRED = {"queue": "0", "timestamp": "0", "client_id": "c", "group": "g", "topic": "orders"}
REQUIRED |= {"rate": "1", "seconds": "0.01", "offset": "0", "number": "1"}
MORE = {
    "topic alter": ["--queues", "9"],
    "topic delete": ["--yes"],
    "cluster balance": ["--dry-run", "--watch", "0s"],
    "cluster elect": ["--unclean", "--yes"],
    "cluster leave": ["--yes"],
    "cluster recover": ["--yes"],
    "cluster remove": ["--yes"],
    "cluster replace": ["--yes"],
    "group alter": ["--retry-max", "1"],
    "group delete": ["--yes"],
    "group reset": ["--to-earliest"],
    "group offset reset": ["--to-earliest"],
    "group lag": ["billing"],
    "dlq resend": ["--all", "--yes"],
    "user delete": ["--yes"],
}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every verb with its Typer command."""
    for name, inner in getattr(command, "commands", {}).items():
        loaded = load(inner.verb) if isinstance(inner, UnloadedVerb) else inner
        if hasattr(loaded, "commands"):
            yield from leaves(loaded, (*path, name))
        else:
            yield " ".join((*path, name)), loaded


VERBS = {
    path: command
    for path, command in leaves(command_tree())
    if path not in LOCAL and not path.startswith(LOCAL_GROUPS)
}
# A bundle names what it could not collect, and is there all the same.
FAILING = [path for path in VERBS if path != "support-bundle"]


@pytest.fixture
def line(tmp_path: Path) -> Any:
    """A verb with as little as it takes."""
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"topics": [{"name": "orders"}]}))

    def words(path: str) -> list[str]:
        arguments: list[str] = []
        options: list[str] = []
        for parameter in VERBS[path].params:
            if not parameter.required:
                continue
            value = REQUIRED.get(parameter.name, "orders")
            if parameter.name in ("file", "ledger"):
                value = str(file if path == "apply" else tmp_path / "ledger")
            if parameter.param_type_name == "argument":
                arguments.append(value)
            else:
                options += [parameter.opts[0], value]
        return [*path.split(), *arguments, *options, *MORE.get(path, [])]

    return words


class Failing:
    """Whatever is asked of it fails: a client of which each call ends in `failure`."""

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def __getattr__(self, name: str) -> Failing:
        return self

    def __call__(self, *_: object, **__: object) -> Failing:
        return self

    @staticmethod
    def unasked() -> int:
        return 0

    def __await__(self) -> Any:
        return self._fail().__await__()

    async def _fail(self) -> None:
        if isinstance(self.failure, KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # as the terminal does it
            await asyncio.Event().wait()
        raise self.failure

    def __aiter__(self) -> Failing:
        return self

    async def __anext__(self) -> Any:
        await self._fail()

    async def __aenter__(self) -> Failing:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def aclose(self) -> None:
        return

    async def close(self) -> None:
        return


@pytest.fixture
def failing(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a line; the first call of the client ends in a failure."""

    def ran(failure: BaseException, words: list[str], *, connecting: bool = False) -> Any:
        async def connected(*_: object, **__: object) -> Failing:
            if connecting:
                raise failure
            return Failing(failure)

        monkeypatch.setattr(trovemq, "connect", connected)
        return run(*words, stdin=b"a line\n")

    return ran


def one_error(ran: Any, symbol: str) -> None:
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", symbol), ran.err


@pytest.mark.parametrize("path", FAILING)
def test_what_a_broker_refuses_is_one_error(path: str, line: Any, failing: Any) -> None:
    words = ["--json", *line(path)]
    one_error(failing(TroveError(errors.TOPIC_NOT_FOUND, "no topic orders"), words), "TOPIC_NOT_FOUND")
    one_error(
        failing(TroveError(errors.BROKER_UNREACHABLE, "nobody there"), words, connecting=True),
        "BROKER_UNREACHABLE",
    )
    one_error(failing(RuntimeError("surprise"), words), "UNKNOWN_ERROR")


@pytest.mark.parametrize("path", FAILING)
def test_for_a_person_an_error_is_a_line_and_what_to_do(path: str, line: Any, failing: Any) -> None:
    ran = failing(TroveError(errors.TOPIC_NOT_FOUND, "no topic orders"), line(path))
    shown = ran.err.splitlines()
    assert (ran.code, ran.out) == (1, b"")
    assert shown[0].startswith("✗ TOPIC_NOT_FOUND (")
    assert shown[1].startswith("  → ")
    assert len(shown) == 2


@pytest.mark.parametrize("path", VERBS)
def test_ctrl_c_ends_each_verb_in_silence_with_130(path: str, line: Any, failing: Any) -> None:
    for style in ([], ["--json"]):
        ran = failing(KeyboardInterrupt(), [*style, *line(path)])
        assert (ran.code, ran.out, ran.err) == (130, b"", "")


@pytest.mark.parametrize("path", VERBS)
def test_a_wrong_address_is_refused_before_anything_is_dialled(
    path: str, line: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trovemq, "connect", connect)
    for server in ("nonsense", "127.0.0.1", "http://127.0.0.1:8081", "127.0.0.1:99999", "trovemq://a?b=c"):
        one_error(run("--json", "--server", server, *line(path), stdin=b"a line\n"), "REQUEST_ILLEGAL")


@pytest.mark.parametrize("path", VERBS)
def test_an_option_that_is_not_there_is_wrong_usage(path: str, line: Any, run: Any) -> None:
    ran = run(*line(path), "--no-such-option")
    assert (ran.code, ran.out) == (2, b"")
    assert ran.err == f"✗ No such option: --no-such-option\n  → See `trovemq {path} --help`.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("consume", "orders"), "✗ Missing option '--group'."),
        (
            ("pull", "orders", "--queue", "0", "--max", "one"),
            "✗ Invalid value for '--max': 'one' is not a whole number.",
        ),
        (("cluster", "--timeout", "soon"), "✗ Invalid value for '--timeout': 'soon' is not a number."),
        (("topic", "lst"), "✗ No such command 'lst'."),
        (("query", "orders", "k", "--begin", "now", "--end", "1h"), "is after --end"),
        (("errors", "xyz"), "no error is called xyz; `trovemq errors` lists all"),
    ],
)
def test_wrong_usage_is_a_line_and_where_to_look(words: tuple[str, ...], said: str, run: Any) -> None:
    ran = run(*words)
    shown = ran.err.splitlines()
    assert (ran.code, ran.out, len(shown)) == (1 if words[0] == "errors" else 2, b"", 2)
    assert said in shown[0]
    assert shown[1].startswith("  → ")


class GoneReader(io.StringIO):
    """Standard output of `trovemq … | true`."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(
    "words", [("--help",), ("topic", "--help"), ("topic", "list", "--help"), ("--version",)]
)
def test_help_for_a_reader_that_is_gone_ended_with_1(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", GoneReader())
    assert app.run(words) == 0


def test_a_call_without_arguments_shows_the_verbs(run: Any) -> None:
    for words in ((), ("topic",)):
        ran = run(*words)
        assert (ran.code, ran.out) == (2, b"")
        assert "Commands:" in ran.err


def test_every_verb_is_walked() -> None:
    assert len(VERBS) > 40


def test_the_help_of_broker_fits_the_verb() -> None:
    """`topic list --broker` said "needed where several have the queue"."""
    for path, command in VERBS.items():
        parameters = {parameter.name: parameter for parameter in command.params}
        broker = parameters.get("broker")
        if broker is None or "where several have" not in (broker.help or ""):
            continue
        assert {"queue", "identifier"} & parameters.keys() or path == "dlq show", path


@pytest.mark.parametrize("spec", [errors.GROUP_NOT_FOUND, errors.TOPIC_NOT_FOUND])
def test_a_name_that_is_not_known_was_to_be_created(spec: errors.ErrorSpec) -> None:
    """The caller of a list, a description or a deletion has misspelt it."""
    assert spec.what_to_do.startswith("See the names: trovemq ")


@pytest.mark.parametrize(
    ("names", "silent"),
    [
        (("a",), "broker a at a:8081 did not answer"),
        (("a", "b"), "one of 2 brokers: broker a at a:8081, b at b:8081 did not answer"),
        (tuple("abcd"), "one of 4 brokers: broker a at a:8081, b at b:8081, c at c:8081, … did not answer"),
    ],
)
def test_the_nameserver_was_blamed_for_a_silent_broker(
    run: Any, client: FakeClient, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], silent: str
) -> None:
    async def hangs(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    brokers = [BrokerRoute(BrokerInfo("C", name, f"{name}:8081"), ()) for name in names]
    pool = SimpleNamespace(routes=SimpleNamespace(state=ClusterState(tuple(brokers))))
    monkeypatch.setattr(client, "_pool", pool, raising=False)
    monkeypatch.setattr(client, "queue_offsets", hangs)
    ran = run("--server", "ns:9876", "--timeout", "0.001", "pull", "orders", "--queue", "0")
    assert ran.code == 1
    assert f"{silent} within 0.001 s" in " ".join(ran.err.split())
    assert "ns:9876" not in ran.err
