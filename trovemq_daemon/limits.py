"""The operating system's limits of a process."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Lets the process have as many files open as the machine allows it; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # not allowed here: the present limit has to do
    return hard
