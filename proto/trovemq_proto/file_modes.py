"""Files of secrets that others may read.

As PostgreSQL does, a file of root's may be readable for its group: so container platforms mount secrets. As
ssh does not, such a file is accepted, with a warning: refusing it would stop programs that run.
"""

from __future__ import annotations

import functools
import logging
import os
import stat

_log = logging.getLogger("trovemq.secrets")


def mode_for_others(path: str | os.PathLike[str]) -> str | None:
    """The mode of a file that others than its owner may read or replace, as `0644`; None: it is private, is
    not there, or the system has no such modes."""
    if os.name != "posix":
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    theirs = 0o037 if status.st_uid == 0 and os.geteuid() != 0 else 0o077
    return f"{mode:04o}" if stat.S_ISREG(status.st_mode) and mode & theirs else None


def warn_of_mode(path: str | os.PathLike[str]) -> None:
    """Logs a warning if others may read the file; once in a process for each file and mode."""
    mode = mode_for_others(path)
    if mode is not None:
        _warn(os.path.abspath(path), mode)


@functools.lru_cache(maxsize=1_024)
def _warn(path: str, mode: str) -> None:
    _log.warning(
        "WARNING: %s holds a secret and has mode %s, so others can read it: chmod 600 %s", path, mode, path
    )
