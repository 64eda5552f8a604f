"""Starts `python -m MODULE` as a fork of a server process that has MODULE's imports done.

A new interpreter takes 0.6 s of processor time to import the broker, a fork none. The process is the same as
a started one: a child of the test's process, with its own arguments, environment, working directory and
standard streams, reached by signals and ended by its exit code.

    with popen([sys.executable, "-m", "trovemq_broker", "--store", directory], stderr=subprocess.PIPE) as
    broker:
        ...

| step | who does it                                                                                         |
|------|-----------------------------------------------------------------------------------------------------|
| 1    | the test sends arguments, environment, directory and three descriptors over a socket to the server  |
| 2    | the server imports MODULE's dependencies, once, and forks an intermediate process                   |
| 3    | the intermediate process forks the child and exits                                                  |
| 4    | the kernel gives the orphan to the nearest "subreaper", which the test's process is for that moment |
| 5    | the server answers with the child's process id                                                      |
| 6    | the child asks the kernel to be killed when the test's process ends, and continues as MODULE        |

Commands other than those of PRELOADED start without a fork.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TextIO

ROOT: Final = Path(__file__).resolve().parents[2]
REQUEST_SIZE_MAX: Final = 1 << 17
PID_SIZE: Final = 8
ANSWER_S_MAX: Final = 180.0
"""The first answer waits for a module's imports."""
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
DAEMON: Final = ("trovemq_daemon.cli", "uvicorn.protocols.http.h11_impl", "uvloop")
PRELOADED: Final[Mapping[str, tuple[str, ...]]] = {
    "trovemq_broker": (
        "trovemq_broker.daemon.app",
        "trovemq_broker.daemon.rocketmq_keys",
        "tests.support.early_imports",
        *DAEMON,
    ),
    "trovemq_nameserver": ("trovemq_nameserver.app", "tests.support.early_imports", *DAEMON),
    "trovemq.cli": ("trovemq.cli.app", "trovemq.client"),
    "trovemq_broker.tools": (
        "trovemq_store.backup.restore",
        "trovemq_store.engine.message_store",
        "trovemq_store.check.repair",
        "trovemq_store.check.stopped_trees",
        "trovemq_broker.tools.tree_dump",
        "trovemq_store.check.verify",
    ),
    "tests.pipeline.archive_kill": (
        "tests.pipeline.archive_logs",
        "trovemq_spark.jobs.archive",
        "trovemq_spark.jobs.compact",
    ),
    "tests.pipeline.rebuild_kill": ("tests.pipeline.archive_logs", "tests.support.rebuilt"),
}
"""MODULE -> the imports for it. Not MODULE's `__main__`: that runs again in each child."""
INTERPRETER_OPTIONS: Final = ("-u", "-P")
_STARTING: Final = threading.Lock()


# --- the test's side ----------------------------------------------------------------------------------


class ForkedProcess(subprocess.Popen[Any]):
    """A Popen whose child the server forks. Everything but the start is Popen's own."""

    def _execute_child(self, *arguments: Any) -> None:
        # CPython's own seam between the pipes, which are made here, and the start of the process.
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
        given = dict(zip(names, arguments, strict=True))
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        descriptors = [own if stream == -1 else stream for own, stream in enumerate(streams)]
        command = _without_options(given["args"])
        request = {
            "module": command[1],
            "arguments": command[2:],
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "directory": str(given["cwd"] or Path.cwd()),
            "parent": os.getpid(),
        }
        self.pid = _server().fork(request, descriptors)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """A subprocess.Popen, or its like from the server where that can start this command."""
    words = _without_options(command)
    known = words[:1] == ["-m"] and words[1] in PRELOADED
    return (ForkedProcess if known and sys.platform == "linux" else subprocess.Popen)(command, **options)


def run(
    command: Sequence[str],
    *,
    input: bytes | None = None,  # noqa: A002  as subprocess.run
    check: bool = False,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[bytes]:
    """Runs the command to its end, with captured output; started by `popen`."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(list(command), process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _without_options(command: Sequence[str]) -> list[str]:
    """`-m MODULE ARGUMENT…` of a command line of this interpreter; else nothing."""
    words = [str(word) for word in command]
    if words[0] != sys.executable:
        return []
    while words[1:] and words[1] in INTERPRETER_OPTIONS:
        del words[1]
    return words[1:]


class _Server:
    """The server's process and the socket to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S_MAX)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        atexit.register(self.close)

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The new process's id. It is a child of this process."""
        with self._lock:
            _set_subreaper(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
                answer = self._socket.recv(PID_SIZE)
            except TimeoutError as error:
                self._process.kill()  # a late answer would be taken for that of the next request
                raise RuntimeError(f"no answer of the fork server in {ANSWER_S_MAX:g} s") from error
            finally:
                _set_subreaper(False)
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        if not (pid := int.from_bytes(answer)):
            raise RuntimeError("the fork server could not fork")
        return pid

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _the_server() -> _Server:
    return _Server()


def _server() -> _Server:
    """The one of this process. Two would switch the subreaper off for each other's children."""
    with _STARTING:
        return _the_server()


def _set_subreaper(on: bool) -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, int(on))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


# --- the server's side --------------------------------------------------------------------------------


def serve(requests: socket.socket) -> dict[str, Any]:
    """Answers requests until their sender has gone. In a child it returns the child's function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the tests
    loaded: set[str] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_SIZE_MAX, 3)
        if not data:
            return {}
        request: dict[str, Any] = json.loads(data)
        if request["module"] not in loaded:
            loaded.add(request["module"])
            for name in PRELOADED[request["module"]]:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()  # a child's collections leave the shared pages alone
        reported, tell = os.pipe()
        intermediate = os.fork()
        if intermediate == 0:
            intermediate = os.getpid()
            try:
                child = os.fork()
            except OSError:
                os._exit(1)
            if child != 0:
                os.write(tell, child.to_bytes(PID_SIZE))
                os._exit(0)
            _end_with(request["parent"], intermediate)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(3, 1 << 16)
            requests.detach()
            return request
        os.close(tell)
        child = int.from_bytes(os.read(reported, PID_SIZE))
        os.waitpid(intermediate, 0)  # by now the child is its new parent's
        for descriptor in (reported, *descriptors):
            os.close(descriptor)
        requests.send(child.to_bytes(PID_SIZE))


def _end_with(parent: int, first: int) -> None:
    """When the parent ends, this process is killed. Until `first` has ended, that is its parent."""
    while os.getppid() == first:
        time.sleep(0)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has ended before


def _open_output(name: str, descriptor: int) -> None:
    """Opens a standard stream again: the server's own one was a file, and a pipe has no position."""
    server: TextIO = getattr(sys, name)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw: Any = open(descriptor, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    stream = io.TextIOWrapper(
        raw,
        server.encoding,
        server.errors,
        line_buffering=name == "stderr",
        write_through=unbuffered,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def become(request: Mapping[str, Any]) -> None:
    """Continues as `python -m MODULE` would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _open_output("stdout", 1)
    _open_output("stderr", 2)
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found:
        become(found)
