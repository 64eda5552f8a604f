"""Settings as they are shown to operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting and its present value. Values are TOML; the value of a secret that is set is empty."""

    name: str
    value: str
    source: str
    restart: bool
    """Whether a change needs a restart."""
    started_with: str
    """The value to which a restart returns."""
    form: str
    what: str


class RunningSettings(Protocol):
    """The settings of a running broker."""

    def shown(self, names: Sequence[str]) -> list[ShownSetting]:
        """The named settings, by our names or RocketMQ's; all settings if no name is given. Raises
        REQUEST_ILLEGAL for an unknown name."""
        ...

    def set(self, name: str, text: str) -> ShownSetting:
        """Changes a setting at once. Raises REQUEST_ILLEGAL, and then nothing has changed."""
        ...
