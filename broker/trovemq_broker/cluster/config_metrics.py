"""The metrics of the cluster's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_broker.cluster_config.take_over import CopyStatus

STATES: Final = (
    *("alone", "owner", "superseded", "contradicted", "removed"),
    *("joining", "waiting", "stored", "current"),
)
"""As in cluster_config.proto, ConfigStatus."""
TO_MEND: Final = ("unlisted", "differing", "withheld", "dropped", "failed")


class MemberFigures(Protocol):
    """A follower, as the owner knows it."""

    @property
    def broker(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def live(self) -> bool: ...


class StatusFigures(Protocol):
    """The status of a broker's configuration; each list has the entries that need an operator."""

    @property
    def state(self) -> str: ...
    @property
    def copy(self) -> CopyStatus: ...
    @property
    def members(self) -> Sequence[MemberFigures]: ...
    @property
    def unlisted(self) -> Sequence[object]: ...
    @property
    def differing(self) -> Sequence[object]: ...
    @property
    def withheld(self) -> Sequence[object]: ...
    @property
    def dropped(self) -> Sequence[object]: ...
    @property
    def failed(self) -> Sequence[object]: ...


class ConfigFigures(Protocol):
    """This broker's part in the cluster's configuration. `changes`: the number that it has made as the owner
    since its start; `changes_waiting`: the number that is not acknowledged yet."""

    @property
    def changes(self) -> int: ...
    @property
    def changes_waiting(self) -> int: ...
    def status(self) -> StatusFigures: ...


class ConfigCollector(Collector):
    """State, table, followers, changes, and entries that need an operator."""

    def __init__(self, figures: ConfigFigures) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        status = self._figures.status()
        head = status.copy.head
        members = [one for one in status.members if one.broker != status.copy.broker]
        states = GaugeMetricFamily(
            "trovemq_config_state", "1 for the state of the cluster's configuration here.", labels=("state",)
        )
        for state in STATES:
            states.add_metric((state,), float(status.state == state))
        yield states
        for name, what, value in (
            ("generation", "The generation of this broker's table; 0 without one.", head.generation.number),
            ("version", "The version of this broker's table; 0 without one.", head.version),
            ("members", "Of the owner: the other brokers of the cluster.", len(members)),
            ("members_live", "Of the owner: followers that changes wait for.", sum(m.live for m in members)),
            ("changes_waiting", "Changes that are not acknowledged yet.", self._figures.changes_waiting),
        ):
            yield GaugeMetricFamily(f"trovemq_config_{name}", what, value=value)
        lags = GaugeMetricFamily(
            "trovemq_config_follower_lag", "Of the owner: versions that a broker lacks.", labels=("broker",)
        )
        for member in members:
            lags.add_metric((member.broker,), max(head.version - member.version, 0))
        yield lags
        yield CounterMetricFamily(
            "trovemq_config_changes",
            "Changes that this broker has made as the owner.",
            value=self._figures.changes,
        )
        entries = GaugeMetricFamily(
            "trovemq_config_entries", "Entries that need an operator.", labels=("problem",)
        )
        for name in TO_MEND:
            entries.add_metric((name,), len(getattr(status, name)))
        yield entries
