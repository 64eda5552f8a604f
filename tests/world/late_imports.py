"""Runs a module whose imports are refused once a file exists, as they fail where no descriptor is free; their
names are written beside it.

    python -m tests.world.late_imports FILE MODULE ARGUMENTS...

FILE.late has a line for each refused import.
"""

from __future__ import annotations

import errno
import os
import runpy
import sys
from typing import Any


def refuse_imports(flag: str) -> None:
    late = os.open(f"{flag}.late", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and os.path.exists(flag):
            os.write(late, f"{arguments[0]}\n".encode())
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), arguments[0])

    sys.addaudithook(refuse)


if __name__ == "__main__":
    refuse_imports(sys.argv[1])
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
