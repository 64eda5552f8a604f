"""Runs a rebuild, without Spark, in a separate process, and kills it with SIGKILL before its n-th event on
the file system below OUT.

    python -m tests.pipeline.rebuild_kill STORE OUT [EVENT]     (no EVENT: prints how many)
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.archive_kill import Killer
from tests.support.rebuilt import rebuild_here


def main(store: str, out: str, at: str = "") -> None:
    killer = Killer(out, int(at) if at else None)
    sys.addaudithook(killer)
    rebuild_here(Path(store), Path(out))
    print(killer.count)


if __name__ == "__main__":
    main(*sys.argv[1:])
