"""Statuses of the cluster's configuration, as brokers would give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.config import ConfigGeneration, ConfigStatus

MARK = "0123456789abcdef"
FIRST, SECOND = ConfigGeneration(1, MARK), ConfigGeneration(2, MARK)


def status(broker: str, state: str, version: Any = 7, **more: Any) -> ConfigStatus:
    """With the table of broker `a`, or of the owner that is named; one that is alone has none."""
    if state == "alone":
        return ConfigStatus(broker=broker, state=state, **more)
    owned = {"cluster": "c1", "owner": "a", "generation": FIRST, "version": version}
    return ConfigStatus(broker=broker, state=state, **{**owned, **more})


@dataclass
class FakeConfig:
    """`admin.config`: the configuration that each broker has."""

    statuses: list[ConfigStatus] = field(default_factory=lambda: [status("broker-a", "alone")])
    missing: tuple[str, ...] = ()

    async def status(self) -> BrokerAnswers[ConfigStatus]:
        return BrokerAnswers(self.statuses, missing=self.missing)
