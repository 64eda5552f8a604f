"""SDK and command line import where the modules and names of Linux are missing: on macOS and on Windows.

Libraries of others keep them: they have their own forms for these systems.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MISSING_MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop")
MISSING_NAMES = {
    "os": (
        *("fork", "forkpty", "register_at_fork", "fchmod", "fchown", "chown", "getuid", "geteuid", "getgid"),
        *("pread", "pwrite", "preadv", "pwritev", "posix_fallocate", "posix_fadvise", "fdatasync", "sysconf"),
        *("sched_getaffinity", "killpg", "getpgid", "setsid", "uname", "statvfs", "O_CLOEXEC", "O_DIRECTORY"),
    ),
    "signal": (
        "SIGHUP",
        "SIGKILL",
        "SIGPIPE",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGWINCH",
        "pthread_sigmask",
    ),
    "socket": ("SO_REUSEPORT",),
    "mmap": ("MAP_SHARED", "PROT_READ", "MADV_DONTNEED"),
}

SCRIPT = f"""
import builtins, importlib, pkgutil, sys
import asyncio, concurrent.futures.process, logging.handlers, multiprocessing, ssl, subprocess, tempfile
import celery, cryptography.x509, google.protobuf.message, grpc.aio, kombu.transport.virtual, numpy
import mcp.server.mcpserver, pytest, rich, taskiq, typer.main, yaml

OURS = ("trovemq", "trovemq_proto", "trovemq_rpc")
import_before = builtins.__import__

def import_there(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {{}}).get("__name__", "")
    if name.partition(".")[0] in {MISSING_MODULES!r} and importer.partition(".")[0] in OURS:
        raise ImportError(f"{{importer}} imports {{name}}, which other systems do not have")
    return import_before(name, globals, locals, fromlist, level)

builtins.__import__ = import_there
for module, names in {MISSING_NAMES!r}.items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)

import trovemq
for name in trovemq.__all__:
    getattr(trovemq, name)
count = 0
for package in map(importlib.import_module, OURS):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
assert count > 150, count

from trovemq.cli.app import run
assert run(["--version"]) == 0
from trovemq import errors, sync
try:
    sync.connect("127.0.0.1:1")
except trovemq.TroveError as error:
    assert error.spec is errors.BROKER_UNREACHABLE, error
print("all is here")
"""


@pytest.mark.slow
def test_sdk_and_command_line_import_without_the_names_of_linux() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout.splitlines()[-1:] == ["all is here"], ran.stdout + ran.stderr
