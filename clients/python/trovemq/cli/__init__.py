"""The command line `trovemq`. The rules of its verbs are in `trovemq.cli.app`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The console script's entry: runs one command and exits with its code (0 answer, 1 error, 2 usage)."""
    # gRPC's C core would write lines of its own among ours; it reads this when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from trovemq.cli.app import run

    raise SystemExit(run(sys.argv[1:]))
