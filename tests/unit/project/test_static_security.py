"""Daemons, store and protocol run no shell, evaluate no text, and read no pickles: by their syntax trees.

ruff's rules S are bandit's, and `make check` runs them over everything that is shipped; here is what these
packages may not have at all, whatever a comment says.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.project.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    "broker/trovemq_broker",
    "nameserver/trovemq_nameserver",
    "daemon/trovemq_daemon",
    "store/trovemq_store",
    "proto/trovemq_proto",
    "rpc/trovemq_rpc",
)
MODULES = {
    *("subprocess", "pickle", "cPickle", "dill", "marshal", "shelve", "code", "codeop", "pty", "runpy"),
    *("yaml", "xml", "telnetlib", "ftplib", "multiprocessing", "imp", "urllib.request", "requests"),
}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "import_module",
    "system",
    "popen",
    "execv",
    "execve",
    "spawnv",
}
DYNAMIC_IMPORTS = {
    # a separate table names the module, no text from outside
    "proto/trovemq_proto/records/__init__.py",
    "proto/trovemq_proto/records/compression.py",
    # names in the module itself
    "daemon/trovemq_daemon/early_imports.py",
}
YAML_PRINTED = "broker/trovemq_broker/tools/__main__.py"
"""Prints YAML and reads none."""


def faults_of(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from {node.module, *(f"{node.module}.{one.name}" for one in node.names)} & MODULES
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            of_re = isinstance(called, ast.Attribute) and ast.unparse(called.value) in ("re", "regex")
            if name in CALLS and not of_re:
                yield f"{name}()"
            if any(word.arg == "shell" for word in node.keywords):
                yield "shell="


IMPORTS = """
import sys

SEEN = []
EVENTS = {"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.fork"}
sys.addaudithook(lambda event, _: SEEN.append(event) if event in EVENTS else None)
import trovemq_broker.daemon.app, trovemq_nameserver.app, trovemq.cli.app, trovemq.sync, trovemq_console.app
sys.exit(", ".join(SEEN) or 0)
"""


@pytest.mark.slow
def test_imports_reach_no_network_and_start_no_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_no_daemon_runs_a_shell_evaluates_text_or_reads_pickles() -> None:
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            faults = set(faults_of(ast.parse(path.read_text(encoding="utf-8"))))
            if faults:
                found[str(path.relative_to(ROOT))] = faults
    assert found == {**{path: {"import_module()"} for path in DYNAMIC_IMPORTS}, YAML_PRINTED: {"yaml"}}
    used = set(re.findall(r"\byaml\.(\w+)", (ROOT / YAML_PRINTED).read_text(encoding="utf-8")))
    assert used == {"dump", "SafeDumper"}


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess",
        "from pickle import loads",
        "from urllib import request",
        "x = eval('1')",
        "import os\nos.system('ls')",
        "run(x, shell=True)",
        "importlib.import_module(name)",
    ],
)
def test_each_of_them_would_be_found(text: str) -> None:
    assert list(faults_of(ast.parse(text)))
