"""Settings as they are shown to operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting as it is now. Values are TOML; those of a secret that is set are empty."""

    name: str
    value: str
    source: str
    restart: bool
    """Whether a change needs one."""
    started_with: str
    """The value to which a restart returns."""
    form: str
    what: str


class RunningSettings(Protocol):
    """The settings of a broker that runs."""

    def shown(self, names: Sequence[str]) -> list[ShownSetting]:
        """These, by our name or RocketMQ's; all where none is named. REQUEST_ILLEGAL for an unknown one."""
        ...

    def set(self, name: str, text: str) -> ShownSetting:
        """It has this value from now on. REQUEST_ILLEGAL: nothing has changed then."""
        ...
