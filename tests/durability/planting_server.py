"""A process that has imported every library runs the tests of one planted bug after another.

Each bug gets a fork of this process: there the project's own modules are imported afresh, one of them with
the bug, and pytest runs the tests that should find it. That takes a fraction of what a new interpreter takes,
and is as separate from the bug before. The process starts no thread, so nothing is lost in a fork.

    request   one line: the bug as JSON, its tests in `finds`, variables for its tests in `environment`, their
              time in `time_max_s`
    reply     one line: {"code": pytest's exit code, "said": pytest's output}
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Final

import pytest

from tests.durability.planted import VARIABLE

LIBRARIES_OF: Final = (
    "trovemq_broker.daemon.app",
    "trovemq_nameserver.app",
    "trovemq",
    "trovemq.testing",
    "trovemq.cli.app",
)
"""Importing these imports every library; they themselves are forgotten again."""
LIBRARIES: Final = ("pytest_asyncio.plugin", "hypothesis.stateful", "unittest.mock", "asyncio")
OWN: Final = frozenset(
    {
        *(
            "trovemq",
            "trovemq_broker",
            "trovemq_console",
            "trovemq_daemon",
            "trovemq_nameserver",
            "trovemq_proto",
            "trovemq_rpc",
            "trovemq_spark",
            "trovemq_store",
        ),
        *("tests", "bench"),
    }
)
GENERATED: Final = "_pb2"
"""Protobuf has one registry of messages in a process: these modules stay."""
OPTIONS: Final = (
    *("-q", "-rfE", "--tb=line", "--hypothesis-profile=first-failure"),
    *("-p", "tests.durability.planted"),
    *("--assert=plain", "-p", "no:anyio", "-p", "no:unraisableexception"),  # each costs a tenth of a second
    *("-p", "no:xdist", "-p", "no:cov", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of plugins, which are imported already
)


def warm_up() -> None:
    for name in (*LIBRARIES, *LIBRARIES_OF):
        importlib.import_module(name)
    forget_own_modules()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1


def forget_own_modules() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in OWN and not name.endswith(GENERATED) and name != __name__:
            del sys.modules[name]


def run_forked(request: dict[str, Any]) -> dict[str, Any]:
    """The bug's tests, in a process that ends with them."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            end_with_tests(request, output.fileno())
        code = wait(child, request["time_max_s"])
        output.seek(0)
        return {"code": code, "said": output.read().decode(errors="replace")}


def end_with_tests(request: dict[str, Any], output: int) -> None:
    code = -1
    try:
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(request["environment"])
        os.environ[VARIABLE] = json.dumps(request)
        code = int(pytest.main([*OPTIONS, *request["finds"]]))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code % 256)


def wait(child: int, time_max_s: float) -> int:
    deadline = time.monotonic() + time_max_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def serve() -> None:
    warm_up()
    for line in sys.stdin:
        print(json.dumps(run_forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
