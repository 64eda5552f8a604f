"""The command line `trovemq`. The rules of its verbs are in `trovemq.cli.app`."""

from __future__ import annotations

import gc
import os
import sys

OBJECTS_BEFORE_COLLECTION = 100_000
"""With Python's default the modules would be examined many times while they are imported."""


def main() -> None:
    """The entry of the console script. Exit codes: 0 answer, 1 error, 2 usage, 130 Ctrl-C."""
    # gRPC's C core would write its own lines among ours; it reads this variable when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    open_closed_streams()
    try:
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
