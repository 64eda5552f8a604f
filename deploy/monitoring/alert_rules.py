"""One alert rule, and the rules that several metrics share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

JOB: Final = 'job="broker"'
MINUTES: Final = 60
"""How long the cases run."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    severity: str
    query: str
    wait: str
    summary: str
    action: str
    firing: Mapping[str, str]
    silent: Mapping[str, str]


def series(name: str, labels: str = "") -> str:
    """The case adds an instance of the alert's own name, so that all cases run at once."""
    return f"{name}{{{JOB}{', ' if labels else ''}{labels}}}"


def steady(value: int) -> str:
    return f"{value}x{MINUTES}"


def rise_of(name: str, window: str) -> str:
    """A counter with labels begins with its first event, of which `increase` knows nothing; one that began
    before the first scrape is no rise."""
    begun = f"({name} > 0 unless {name} offset {window}) and on (instance) up offset {window}"
    return f"increase({name}[{window}]) > 0 or {begun}"


def sends_per_minute(up_to: Mapping[str, float]) -> dict[str, str]:
    """How many take up to how many ms."""
    labels = 'request_code="Send", is_long_polling="false"'
    return {
        series("rocketmq_rpc_latency_bucket", f'{labels}, le="{bound}"'): f"0+{count}x{MINUTES}"
        for bound, count in up_to.items()
    }


def counted(name: str, severity: str, metric: str, summary: str, action: str, window: str = "15m") -> Alert:
    """A counter that every broker has from its start, and that should stay where it is."""
    return Alert(
        name,
        severity,
        f"increase({metric}[{window}]) > 0",
        "0m",
        summary,
        action,
        firing={series(metric): f"0x{MINUTES - 5} 1x5"},
        silent={series(metric): steady(3)},
    )


def above(name: str, severity: str, metric: str, limit: int, wait: str, summary: str, action: str) -> Alert:
    """A gauge of every broker that should stay below a limit."""
    return Alert(
        name,
        severity,
        f"{metric} > {limit}",
        wait,
        summary,
        action,
        firing={series(metric): steady(limit + 1)},
        silent={series(metric): steady(limit)},
    )


def config_state(name: str, severity: str, states: str, wait: str, summary: str, action: str) -> Alert:
    """A state of the cluster's configuration that should not last."""
    labels = f'state="{states.split("|", maxsplit=1)[0]}"'
    return Alert(
        name,
        severity,
        f'trovemq_config_state{{state=~"{states}"}} == 1',
        wait,
        summary,
        action,
        firing={series("trovemq_config_state", labels): steady(1)},
        silent={series("trovemq_config_state", labels): f"0x{MINUTES - 3} 1x3"},
    )
