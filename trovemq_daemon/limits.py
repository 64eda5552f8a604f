"""The operating system's limits of a process."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Raises the limit of open files to the most that the machine allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # not allowed here: the present limit stays
    return hard
