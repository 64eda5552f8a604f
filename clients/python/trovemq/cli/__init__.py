"""The command line `trovemq` (the extra `trovemq[cli]`). The rules of its verbs are in `trovemq.cli.app`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The console script's entry: runs one command and exits with its code (0 answer, 1 error, 2 usage)."""
    # gRPC's C core would write lines of its own among ours; it reads this when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from trovemq.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(f"trovemq needs {error.name}: pip install 'trovemq[cli]'\n")
        raise SystemExit(1) from None
    raise SystemExit(run(sys.argv[1:]))
