"""What the command line loads: each verb's own module, and nothing that a machine may lack."""

from __future__ import annotations

import pkgutil
import signal
import subprocess
import sys
from importlib import import_module

import pytest
import typer

import trovemq.cli
from tests.unit.cli.conftest import CommandLine
from trovemq.cli.app import VERBS, command_tree
from trovemq.cli.lazy import UnloadedVerb, Verb, load

# What Windows or macOS have not (fcntl, resource, …), or what a look-up has no use for.
NOT_EVERYWHERE = ("uvloop", "fcntl", "resource", "termios", "tty", "pwd", "grp", "pty")
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not there", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_without(modules: tuple[str, ...], code: str) -> None:
    """Runs the code in a new interpreter in which these modules cannot be imported."""
    script = f"BLOCKED = {modules!r}\n{BLOCK}\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240
    )
    assert ran.returncode == 0, ran.stderr


def cli_modules() -> list[str]:
    return [f"trovemq.cli.{module.name}" for module in pkgutil.iter_modules(trovemq.cli.__path__)]


def test_the_command_line_is_imported_without_what_a_machine_may_lack() -> None:
    modules = ", ".join(name for name in cli_modules() if not name.endswith("__main__"))
    run_without((*NOT_EVERYWHERE, "numpy", "grpc"), f"import trovemq, trovemq.testing, {modules}")


def test_the_client_is_imported_without_what_a_machine_may_lack() -> None:
    names = "trovemq.connect, trovemq.Message, trovemq.Where, trovemq.FetchedBatch, trovemq.Producer"
    run_without((*NOT_EVERYWHERE, "numpy", "grpc"), f"import trovemq; {names}")


def test_a_blocked_module_is_really_blocked() -> None:
    with pytest.raises(AssertionError, match=r"RecordBatch needs NumPy: pip install 'trovemq\[numpy\]'"):
        run_without(("numpy",), "import trovemq; trovemq.RecordBatch")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_list_of_verbs_says_what_each_says_itself(verb: Verb) -> None:
    command = load(verb)
    assert (command.name, command.hidden) == (verb.name, verb.hidden)
    assert " ".join(command.help.split()) == verb.help


def test_every_verb_of_every_module_is_in_the_list() -> None:
    named = {(verb.module, verb.name) for verb in VERBS}
    for module in {verb.module for verb in VERBS}:
        part = typer.Typer()
        register = getattr(import_module(f"trovemq.cli.{module}"), "register", None)
        if register is not None:
            register(part)
            assert {(module, command.name) for command in part.registered_commands} <= named


def test_help_imports_no_verb() -> None:
    code = "from trovemq.cli.app import VERBS, run\nassert run(['--help']) == 0\n"
    run_without((), code + "assert not {f'trovemq.cli.{verb.module}' for verb in VERBS} & set(sys.modules)")


def test_a_misspelt_verb_gets_the_nearest_one_as_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert trovemq.cli.app.run(["qery"]) == 2
    assert "Did you mean 'query'" in capsys.readouterr().err


def test_a_verb_is_loaded_once() -> None:
    tree = command_tree()
    assert trovemq.cli.app.run(["errors", "TOPIC_NOT_FOUND"]) == 0
    loaded = tree.commands["errors"]
    assert not isinstance(loaded, UnloadedVerb)
    assert trovemq.cli.app.run(["errors", "TOPIC_NOT_FOUND"]) == 0
    assert tree.commands["errors"] is loaded


def test_summaries_of_verbs_were_cut_off_in_a_terminal_of_80_columns(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = [verb.name for verb in VERBS if hasattr(load(verb), "commands")]
    assert len(groups) > 10
    for words in ([], *([name] for name in groups), ["group", "offset"]):
        verbs = run(*words, "--help").out.decode().partition("Commands:")[2]
        assert verbs, words
        assert "..." not in verbs, words


@pytest.mark.parametrize("moment", ["import gc", "from trovemq.cli import main", "main()"])
def test_ctrl_c_in_the_first_moment_printed_a_traceback(moment: str) -> None:
    """At the first import of the command line's module, before its main() runs, and at its first step."""
    code = f"""
import builtins, signal, sys
sys.argv = ["/usr/bin/trovemq", "--version"]
def interrupting(name, *rest):
    if name == "gc" and {moment == "import gc"}:
        signal.raise_signal(signal.SIGINT)
    return imported(name, *rest)
imported, builtins.__import__ = builtins.__import__, interrupting
from trovemq.cli import main
if {moment == "main()"}:
    import trovemq.cli
    trovemq.cli.open_closed_streams = lambda: signal.raise_signal(signal.SIGINT)
else:
    signal.raise_signal(signal.SIGINT)
main()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (ran.stderr, ran.stdout) == (b"", b"")
    assert ran.returncode in (130, -signal.SIGINT), "Python ends itself by the signal after the hook"
