"""Four Grafana dashboards with a panel for each metric of the table: broker, topic, group, host.

A metric's labels choose its dashboard; on the broker's, its name chooses the row. A metric that no row takes
is an error, so that a new one gets its place. `instance` selects everywhere: every series has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.monitoring.metric_table import Metric

GROUP: Final = "consumer_group"
TOPIC: Final = "topic"
WIDTH: Final = 24
PANELS_OF_LINE: Final = 3
PANEL_HEIGHT: Final = 7
SERIES_MAX: Final = 20
SCHEMA_VERSION: Final = 39
LABELS_LEFT_OUT: Final = ("message_type", "is_system", "is_retry", "protocol_type", "response_code", "result")

# Shown first on the broker's dashboard, summed over topics and groups.
OVERVIEW: Final = (
    "rocketmq_messages_in_total",
    "rocketmq_messages_out_total",
    "rocketmq_rpc_latency",
    "rocketmq_throughput_in_total",
    "rocketmq_throughput_out_total",
    "rocketmq_consumer_lag_messages",
)

# Title, and how the names of its metrics begin after `rocketmq_` or `trovemq_`.
BROKER_ROWS: Final = (
    (
        "Requests",
        "rpc_ processor_ slow_ open_streams long_polls appends_ one_way_ clients telemetry_ "
        "producer_connections",
    ),
    (
        "Log and disk",
        "storage_ flush replica_timeouts broker_permission drained disk_ segment_ projection_ index_ "
        "open_queue pauses topic_number consumer_group_number",
    ),
    ("Retention", "retention_"),
    ("Damage, scrubs and backups", "store_ damaged_messages records_not_copied"),
    (
        "Deliveries, timers and transactions",
        "dead_letter events snapshot_ timer timers_ transactions_ atomic_",
    ),
    ("Connections and replies", "reply_ request_ connections keepalive_ calls_ streams_reset window_"),
    ("Search", "tree_ trees_ search searches unique_ids producers_numbered"),
    ("Cluster", "routes_ forwards_ relays_ config_"),
    ("Replica group", "group_ etcd_"),
    ("Access, quotas, audit", "access_ sessions users quota audit_"),
)

HOST_METRICS: Final = (
    Metric("process_resident_memory_bytes", (), "Memory that the process has in use"),
    Metric("process_virtual_memory_bytes", (), "Its address space, with the mapped files of the store"),
    Metric("process_cpu_seconds_total", (), "Processor time; 1 is one core"),
    Metric("process_open_fds", (), "Open files and connections"),
    Metric("process_max_fds", (), "Their limit"),
    Metric("process_start_time_seconds", (), "When the process was started"),
    Metric("python_gc_collections_total", ("generation",), "Garbage collections"),
    Metric("python_gc_objects_uncollectable_total", ("generation",), "Objects that no collection could free"),
)
HOST_NAMES: Final = (
    "trovemq_build_info",
    "trovemq_disk_used_percent",
    "rocketmq_storage_size",
    "trovemq_tree_bytes",
)

# They have a sample for each thing that happened; a broker where nothing did has none.
EVENT_LABELS: Final = frozenset({"error", "state", "code", "quota", "projection"})
EVENT_NAMES: Final = frozenset(
    {
        "trovemq_slow_requests_total",
        "trovemq_duplicates_total",
        "trovemq_producer_missing_total",
        "trovemq_producer_filled_total",
        "trovemq_retention_held_bytes",
        "trovemq_config_follower_lag",
    }
)
GROUPS: Final = ("trovemq_group_", "trovemq_etcd_")
"""Of replica groups. A single broker has none."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below one heading."""

    title: str
    metrics: list[Metric] = field(default_factory=list)
    collapsed: bool = True


def dashboards(metrics: Sequence[Metric]) -> dict[str, dict[str, Any]]:
    """By the names of their files."""
    broker = [metric for metric in metrics if _subject(metric) == "broker"]
    by_name = {metric.name: metric for metric in metrics}
    host = [*HOST_METRICS, *(by_name[name] for name in HOST_NAMES)]
    return {
        "broker": _dashboard("broker", _broker_rows(by_name, broker), ()),
        "topic": _dashboard("topic", [_all_of("topic", metrics)], (TOPIC,)),
        "group": _dashboard("group", [_all_of("group", metrics)], (GROUP,)),
        "host": _dashboard("host", [Row("Process and disk", host, collapsed=False)], ()),
    }


def _subject(metric: Metric) -> str:
    if GROUP in metric.labels:
        return "group"
    if TOPIC in metric.labels:
        return "topic"
    return "host" if metric.name == "trovemq_build_info" else "broker"


def _all_of(subject: str, metrics: Iterable[Metric]) -> Row:
    chosen = [metric for metric in metrics if _subject(metric) == subject]
    return Row(f"By {subject}", chosen, collapsed=False)


def _broker_rows(by_name: dict[str, Metric], metrics: Iterable[Metric]) -> list[Row]:
    rows = [Row(title) for title, _ in BROKER_ROWS]
    for metric in metrics:
        short = metric.name.removeprefix("rocketmq_").removeprefix("trovemq_")
        fitting = [
            row
            for row, (_, starts) in zip(rows, BROKER_ROWS, strict=True)
            if short.startswith(tuple(starts.split()))
        ]
        if not fitting:
            raise ValueError(
                f"no row of deploy/monitoring/dashboards.py takes {metric.name}: add its beginning"
            )
        fitting[0].metrics.append(metric)
    first = Row("Overview", [by_name[name] for name in OVERVIEW], collapsed=False)
    return [first, *rows]


# --- one dashboard ----------------------------------------------------------------------------------
def _dashboard(subject: str, rows: Sequence[Row], by: tuple[str, ...]) -> dict[str, Any]:
    return {
        "uid": f"trovemq-{subject}",
        "title": f"TroveMQ {subject}",
        "tags": ["trovemq"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": list(_variables(by))},
        "links": [
            {
                "type": "dashboards",
                "tags": ["trovemq"],
                "title": "TroveMQ",
                "asDropdown": True,
                "keepTime": True,
            }
        ],
        "panels": list(_panels(rows, by)),
    }


def _variables(by: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    sources = {
        "instance": "label_values(trovemq_build_info, instance)",
        TOPIC: 'label_values(rocketmq_messages_in_total{instance=~"$instance"}, topic)',
        GROUP: 'label_values(rocketmq_consumer_lag_messages{instance=~"$instance"}, consumer_group)',
    }
    for name in ("instance", *by):
        yield {
            "name": name,
            "label": name.replace("_", " "),
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": sources[name], "refId": "variables"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _panels(rows: Sequence[Row], by: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    number = top = 0
    for row in rows:
        number += 1
        heading = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
        }
        top += 1
        width = WIDTH // PANELS_OF_LINE
        panels = []
        for place, metric in enumerate(row.metrics):
            number += 1
            line, column = divmod(place, PANELS_OF_LINE)
            grid = {"x": column * width, "y": top + line * PANEL_HEIGHT, "w": width, "h": PANEL_HEIGHT}
            overview = row.title == "Overview" and metric.kind != "histogram"
            panels.append(_panel(number, metric, grid, by, only_sum=overview))
        top += -(-len(panels) // PANELS_OF_LINE) * PANEL_HEIGHT
        # Grafana asks for the panels of a collapsed row when it is opened.
        yield {**heading, "panels": panels if row.collapsed else []}
        if not row.collapsed:
            yield from panels


def _panel(
    number: int, metric: Metric, grid: dict[str, int], by: tuple[str, ...], *, only_sum: bool
) -> dict[str, Any]:
    rate_units = {"bytes": "Bps", "s": "short"}
    unit = metric.unit if metric.kind != "counter" else rate_units.get(metric.unit, "cps")
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.title,
        "description": f"{metric.name}: {metric.meaning}",
        "datasource": _SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for place, (query, legend) in enumerate(queries(metric, by, only_sum=only_sum))
        ],
    }


# --- queries ----------------------------------------------------------------------------------------
def queries(metric: Metric, by: tuple[str, ...], *, only_sum: bool = False) -> Iterator[tuple[str, str]]:
    """Each with its legend."""
    chosen = ", ".join(f'{name}=~"${name}"' for name in ("instance", *by))
    own = () if only_sum else tuple(label for label in metric.labels if label not in LABELS_LEFT_OUT)
    labels = own if by else ("instance", *own)
    names = ", ".join(labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    if metric.kind == "histogram":
        rates = f"sum by (le, {names}) (rate({metric.name}_bucket{{{chosen}}}[$__rate_interval]))"
        yield _limited(f"histogram_quantile(0.5, {rates})", metric, by), f"{legend} p50"
        yield _limited(f"histogram_quantile(0.99, {rates})", metric, by), f"{legend} p99"
        return
    series = f"{metric.name}{{{chosen}}}"
    if metric.kind == "counter":
        query = f"sum by ({names}) (rate({series}[$__rate_interval]))"
    elif metric.unit == "dateTimeFromNow":
        query = f"max by ({names}) ({series}) * 1000"
    else:
        together = "max" if metric.unit in {"ms", "percent"} or "permission" in metric.name else "sum"
        query = f"{together} by ({names}) ({series})"
    if EVENT_LABELS & set(metric.labels) or metric.name in EVENT_NAMES or metric.name.startswith(GROUPS):
        query += " or vector(0)"
    yield _limited(query, metric, by), legend


def _limited(query: str, metric: Metric, by: tuple[str, ...]) -> str:
    """Of many topics or groups, those with the largest values."""
    return f"topk({SERIES_MAX}, {query})" if by or {TOPIC, GROUP} & set(metric.labels) else query
