"""The command line `trovemq`. The rules of its verbs are in `trovemq.cli.app`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, whose import takes longer

if TYPE_CHECKING:
    from types import TracebackType

OBJECTS_BEFORE_COLLECTION = 100_000
"""With Python's default the modules would be examined many times while they are imported."""


def on_exception(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Of the console script, as sys.excepthook: Ctrl-C before main() runs, or after it, prints nothing."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if sys.argv[0].rpartition("/")[2] in ("trovemq", "-m"):  # this is the program, and no library of another one
    sys.excepthook = on_exception

import gc  # noqa: E402  Ctrl-C may come meanwhile
import os  # noqa: E402


def main() -> None:
    """The entry of the console script. Exit codes: 0 answer, 1 error, 2 usage, 130 Ctrl-C."""
    try:
        # gRPC's C core would write its own lines among ours; it reads this variable at its first import.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
        open_closed_streams()
        from trovemq.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported, or a question is asked
        code = 130
    end(code)


def open_closed_streams() -> None:
    """`trovemq … >&-` prints nothing, and no socket gets the descriptor of standard output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  until the end


def end(code: int) -> None:
    """Ends the process at once: the verb has closed everything, and unloading its modules would take Python
    40 ms. A daemon ends as any Python process does."""
    if {"trovemq_broker", "trovemq_nameserver"} & sys.modules.keys():
        raise SystemExit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader has closed the pipe
        pass
    os._exit(code)
