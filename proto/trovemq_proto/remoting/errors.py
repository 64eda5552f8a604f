"""The error of a peer's bytes."""

from __future__ import annotations


class FrameError(Exception):
    """The connection ends: its frames cannot be split any more. The protocol has no error for it."""
