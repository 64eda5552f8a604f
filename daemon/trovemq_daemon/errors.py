"""Errors at the start of a daemon. Remote callers never get them, so they have no row in the error table."""

from __future__ import annotations

from collections.abc import Sequence


class SettingsError(Exception):
    """The given settings cannot be used; `problems` has one sentence for each fault."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))


class AddressInUseError(Exception):
    """The listen address cannot be bound: another process has it, or this machine does not."""
