"""The command line `trovemq`. The rules of its verbs are in `trovemq.cli.app`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry of the console script. Exit codes: 0 answer, 1 error, 2 usage, 130 Ctrl-C."""
    # gRPC's C core would write lines of its own among ours; it reads this when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from trovemq.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported, or a question is asked
        code = 130
    raise SystemExit(code)
