"""The alert rules, each with a case in which it fires and one in which it stays silent.

| field | meaning |
| --- | --- |
| `name`, `severity` | `critical` calls an operator now, `warning` on the next working day |
| `query` | PromQL; it gives a series for each trouble |
| `wait` | how long the trouble must last |
| `summary`, `action` | the trouble, and what to do, both with Prometheus' templates |
| `firing`, `silent` | input of `promtool test rules`: series by their values, one a minute |

The silent case is the nearest harmless one: the other side of the limit, or the trouble for too short a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

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


NEVER: Final = f"sum(count_over_time(ALERTS{{alertstate='firing'}}[{MINUTES}m])) or vector(0)"
LAG: Final = 'consumer_group="billing", topic="orders", is_system="false"'
DEAD: Final = 'consumer_group="billing", topic="orders", is_retry="false", is_system="false"'

ALERTS: Final = (
    Alert(
        "TroveMQDown",
        "critical",
        'up{job=~"broker|nameserver"} == 0',
        "1m",
        "{{ $labels.job }} {{ $labels.instance }} does not answer",
        "Look whether the process runs, and at the end of its log.",
        firing={series("up"): f"1x{MINUTES - 5} 0x5"},
        silent={series("up"): f"1x{MINUTES - 5} 0 1x5"},
    ),
    Alert(
        "TroveMQRestarts",
        "warning",
        'changes(process_start_time_seconds{job=~"broker|nameserver"}[30m]) > 2',
        "0m",
        "{{ $labels.instance }} was started {{ $value }} times in half an hour",
        "The log says why it ended; the exit codes are in docs/command-line.md.",
        firing={series("process_start_time_seconds"): f"1x{MINUTES - 10} 2x2 3x2 4x4"},
        silent={series("process_start_time_seconds"): f"1x{MINUTES - 10} 2x8"},
    ),
    Alert(
        "TroveMQStoreFailed",
        "critical",
        "rocketmq_broker_permission == 4",
        "0m",
        "the disk of {{ $labels.instance }} failed: it stores nothing more",
        "Look at the disk, then start the broker again.",
        firing={series("rocketmq_broker_permission"): steady(4)},
        silent={series("rocketmq_broker_permission"): steady(6)},
    ),
    Alert(
        "TroveMQDiskFull",
        "critical",
        "trovemq_disk_full == 1",
        "0m",
        "{{ $labels.instance }} refuses new messages: its disk is full",
        "Free space, or keep messages for less long (reserved_time_ms).",
        firing={series("trovemq_disk_full"): steady(1)},
        silent={series("trovemq_disk_full"): steady(0)},
    ),
    above(
        "TroveMQDiskFilling",
        "warning",
        "trovemq_disk_used_percent",
        80,
        "15m",
        "{{ $value }} % of the disk of {{ $labels.instance }} are used",
        "Free space before the broker refuses messages (disk_warning_percent).",
    ),
    Alert(
        "TroveMQStoreDamaged",
        "critical",
        'trovemq_store_damaged_ranges_total{state=~"damaged|unreadable|unit-unreadable"} > 0',
        "0m",
        "{{ $labels.instance }} found {{ $value }} places of its log that are {{ $labels.state }}",
        "`trovemq store scrub` names each. Look at the disk; a backup has the lost messages.",
        firing={series("trovemq_store_damaged_ranges_total", 'state="damaged"'): steady(1)},
        silent={series("trovemq_store_damaged_ranges_total", 'state="torn"'): steady(1)},
    ),
    Alert(
        "TroveMQScrubFindings",
        "critical",
        "trovemq_store_scrub_damages_total > 0",
        "0m",
        "scrubs of {{ $labels.instance }} found {{ $value }} damages",
        "The log names each place; `trovemq store scrub` repeats the check.",
        firing={series("trovemq_store_scrub_damages_total"): steady(1)},
        silent={series("trovemq_store_scrub_damages_total"): steady(0)},
    ),
    counted(
        "TroveMQMessagesUnreadable",
        "critical",
        "trovemq_damaged_messages_total",
        "deliveries of {{ $labels.instance }} skipped messages that cannot be read",
        "`trovemq store scrub` names the places.",
    ),
    Alert(
        "TroveMQUnfinishedTransactions",
        "critical",
        "trovemq_atomic_unfinished > 0",
        "0m",
        "{{ $value }} atomic transactions in the log of {{ $labels.instance }} lack records",
        "`trovemq store scrub` shows the damage around them.",
        firing={series("trovemq_atomic_unfinished"): steady(1)},
        silent={series("trovemq_atomic_unfinished"): steady(0)},
    ),
    counted(
        "TroveMQFlushTimeouts",
        "warning",
        "trovemq_flush_timeouts_total",
        "syncs of {{ $labels.instance }} took longer than senders wait",
        "The disk is too slow for its load: look at its latency and at who else writes to it.",
    ),
    counted(
        "TroveMQReplicaTimeouts",
        "warning",
        "trovemq_replica_timeouts_total",
        "messages of {{ $labels.instance }} were not on all in-sync nodes in time",
        "Look at the lag of its replica group's nodes: trovemq cluster status.",
    ),
    Alert(
        "TroveMQNoLeader",
        "critical",
        "trovemq_group_is_leader == 0 unless on (group) trovemq_group_is_leader == 1",
        "1m",
        "no node of the group {{ $labels.group }} leads: it takes and serves no messages",
        "Start the node that led, or trovemq cluster promote NODE, with --server of a node that lives.",
        firing={series("trovemq_group_is_leader", 'group="a"'): f"1x{MINUTES - 5} 0x5"},
        silent={
            series("trovemq_group_is_leader", 'group="b", pod="1"'): f"1x{MINUTES - 5} 0x5",
            series("trovemq_group_is_leader", 'group="b", pod="2"'): f"0x{MINUTES - 5} 1x5",
        },
    ),
    Alert(
        "TroveMQTwoLeaders",
        "critical",
        "max by (instance, group) (trovemq_group_is_leader == 1)"
        " and on (group) count by (group) (trovemq_group_is_leader == 1) > 1",
        "1m",
        "{{ $labels.instance }} leads the group {{ $labels.group }}, and another node does, too",
        "One of them is cut off from the others, and commits nothing: look at the network, or stop it.",
        firing={series("trovemq_group_is_leader", f'group="c", pod="{pod}"'): steady(1) for pod in (1, 2)},
        silent={
            series("trovemq_group_is_leader", f'group="d", pod="{pod}"'): steady(2 - pod) for pod in (1, 2)
        },
    ),
    Alert(
        "TroveMQLeaderChanges",
        "warning",
        "changes(trovemq_group_epoch[10m]) > 6",
        "0m",
        "the group {{ $labels.group }} has another leader again and again",
        "The logs of its nodes say why each one ended, or who promoted it.",
        firing={series("trovemq_group_epoch", 'group="e"'): f"0+64x{MINUTES}"},
        silent={series("trovemq_group_epoch", 'group="e"'): " ".join(str(n // 2) for n in range(MINUTES))},
    ),
    Alert(
        "TroveMQCopyMissing",
        "warning",
        "trovemq_group_under_replicated > 0 and trovemq_group_is_leader == 1",
        "5m",
        "{{ $value }} copies of the group {{ $labels.group }} are not in sync",
        "trovemq cluster status names them, and why.",
        firing={
            series("trovemq_group_under_replicated", 'group="f"'): steady(1),
            series("trovemq_group_is_leader", 'group="f"'): steady(1),
        },
        silent={
            series("trovemq_group_under_replicated", 'group="g"'): f"0x{MINUTES - 4} 1x4",
            series("trovemq_group_is_leader", 'group="g"'): steady(1),
        },
    ),
    Alert(
        "TroveMQCopyLags",
        "warning",
        "trovemq_group_replica_lag_seconds > 10",
        "1m",
        "{{ $labels.node }} of the group {{ $labels.group }} lags by {{ $value }} s",
        "Look at its disk and its network; trovemq cluster status shows the bytes.",
        firing={series("trovemq_group_replica_lag_seconds", 'group="h", node="b"'): steady(11)},
        silent={series("trovemq_group_replica_lag_seconds", 'group="h", node="b"'): steady(10)},
    ),
    Alert(
        "TroveMQDamageNotRepaired",
        "critical",
        "trovemq_group_damaged_places > 0",
        "5m",
        "{{ $value }} damaged places of {{ $labels.instance }} have no good copy in {{ $labels.group }}",
        "Start the other nodes; the log names each place (replica.not_repaired). Look at the disk.",
        firing={series("trovemq_group_damaged_places", 'group="n"'): steady(1)},
        silent={series("trovemq_group_damaged_places", 'group="o"'): f"0x{MINUTES - 4} 1x4"},
    ),
    Alert(
        "TroveMQEtcdAway",
        "warning",
        "trovemq_etcd_up == 0",
        "1m",
        "etcd does not answer {{ $labels.instance }}: no other node of its group can become the leader",
        "Look at the members of etcd, and at etcd_endpoints; the group works on meanwhile.",
        firing={series("trovemq_etcd_up"): steady(0)},
        silent={series("trovemq_etcd_up"): steady(1)},
    ),
    Alert(
        "TroveMQTooFewCopies",
        "critical",
        'rate(trovemq_appends_refused_total{error="NOT_ENOUGH_REPLICAS"}[5m]) > 0',
        "1m",
        "{{ $labels.instance }} refuses messages: fewer copies than in_sync_min are in sync",
        "Start the missing nodes: trovemq cluster status names them.",
        firing={series("trovemq_appends_refused_total", 'error="NOT_ENOUGH_REPLICAS"'): f"0+1x{MINUTES}"},
        silent={series("trovemq_appends_refused_total", 'error="NOT_ENOUGH_REPLICAS"'): steady(3)},
    ),
    above(
        "TroveMQSyncBehind",
        "warning",
        "rocketmq_storage_flush_behind_bytes",
        64 << 20,
        "5m",
        "{{ $value | humanize1024 }}B of {{ $labels.instance }} are not synced",
        "The disk is slower than the senders.",
    ),
    Alert(
        "TroveMQAppendsRefused",
        "warning",
        "sum by (instance, error) (rate(trovemq_appends_refused_total[5m])) > 0.1",
        "10m",
        "{{ $labels.instance }} refuses messages with {{ $labels.error }}",
        "`trovemq errors {{ $labels.error }}` says what to do.",
        firing={series("trovemq_appends_refused_total", 'error="DISK_FULL"'): f"0+60x{MINUTES}"},
        silent={series("trovemq_appends_refused_total", 'error="DISK_FULL"'): f"0+5x{MINUTES}"},
    ),
    Alert(
        "TroveMQProjectionLagging",
        "warning",
        "trovemq_projection_lagging == 1",
        "10m",
        "the {{ $labels.projection }} of {{ $labels.instance }} does not reach the end of the log",
        "Look-ups are complete meanwhile, and slower. The log names the failure; a full disk wants space.",
        firing={series("trovemq_projection_lagging", 'projection="index"'): steady(1)},
        silent={series("trovemq_projection_lagging", 'projection="index"'): f"_x{MINUTES - 5} 1x5"},
    ),
    above(
        "TroveMQTreesBehind",
        "warning",
        "trovemq_tree_lag_bytes",
        1 << 30,
        "30m",
        "the trees of {{ $labels.instance }} lack {{ $value | humanize1024 }}B of the log",
        "Searches are exact meanwhile, and slow. It is busy with more than it can index.",
    ),
    counted(
        "TroveMQRetentionDropped",
        "critical",
        "trovemq_retention_dropped_messages_total",
        "{{ $labels.instance }} removed messages that waited for delivery, to free its disk",
        "Give the store more space, or clean_forcibly_enable=false.",
    ),
    counted(
        "TroveMQRetentionDroppedUnacknowledged",
        "critical",
        "trovemq_retention_dropped_unacknowledged_total",
        "{{ $labels.instance }} removed unacknowledged messages of topics that keep them",
        "Give the store more space, or clean_forcibly_enable=false.",
    ),
    counted(
        "TroveMQRetentionFails",
        "warning",
        "trovemq_retention_failures_total",
        "{{ $labels.instance }} cannot remove old segments",
        "The log says which file, and why.",
        "1h",
    ),
    counted(
        "TroveMQBackupFailed",
        "warning",
        "trovemq_store_backup_failures_total",
        "a backup of {{ $labels.instance }} failed",
        "The log says why; make another one.",
        "1h",
    ),
    Alert(
        "TroveMQGroupLags",
        "warning",
        'rocketmq_consumer_lag_latency{is_system="false"} > 900000',
        "10m",
        "{{ $labels.consumer_group }} has a lag of more than 15 minutes in {{ $labels.topic }}",
        "`trovemq group lag {{ $labels.consumer_group }}`: start more consumers, or make them faster.",
        firing={series("rocketmq_consumer_lag_latency", LAG): steady(900_001)},
        silent={series("rocketmq_consumer_lag_latency", LAG): f"0x{MINUTES - 5} 900001x4"},
    ),
    Alert(
        "TroveMQGroupStalled",
        "warning",
        'rocketmq_consumer_ready_messages{is_system="false"} > 0 '
        "and rocketmq_consumer_inflight_messages == 0",
        "15m",
        "{{ $value }} messages of {{ $labels.topic }} are ready, and {{ $labels.consumer_group }} takes none",
        "Start its consumers; `trovemq group describe {{ $labels.consumer_group }}` shows its members.",
        firing={
            series("rocketmq_consumer_ready_messages", LAG): steady(5),
            series("rocketmq_consumer_inflight_messages", LAG): steady(0),
        },
        silent={
            series("rocketmq_consumer_ready_messages", LAG): steady(5),
            series("rocketmq_consumer_inflight_messages", LAG): steady(1),
        },
    ),
    Alert(
        "TroveMQDeadLetters",
        "warning",
        rise_of("rocketmq_send_to_dlq_messages_total", "15m"),
        "0m",
        "{{ $labels.consumer_group }} failed with messages of {{ $labels.topic }} to the last attempt",
        "`trovemq dlq list {{ $labels.consumer_group }}`; `trovemq dlq resend` when the cause is repaired.",
        firing={
            series("up"): steady(1),
            series("rocketmq_send_to_dlq_messages_total", DEAD): f"_x{MINUTES - 5} 1x5",
        },
        silent={series("up"): steady(1), series("rocketmq_send_to_dlq_messages_total", DEAD): steady(1)},
    ),
    counted(
        "TroveMQDeadLettersRefused",
        "critical",
        "trovemq_dead_letter_failures_total",
        "{{ $labels.instance }} cannot store dead letters",
        "They are tried again. The log says why they were refused.",
    ),
    above(
        "TroveMQTimersLate",
        "warning",
        "rocketmq_timer_dequeue_latency",
        60_000,
        "5m",
        "a delayed message of {{ $labels.instance }} is {{ $value }} ms late",
        "The broker is too busy, or refuses messages: look at its other alerts.",
    ),
    counted(
        "TroveMQTimersLost",
        "critical",
        "trovemq_timers_lost_total",
        "delayed messages of {{ $labels.instance }} could not be read at their time",
        "`trovemq store scrub` names the damaged places.",
    ),
    counted(
        "TroveMQTransactionsGivenUp",
        "warning",
        "trovemq_transactions_given_up_total",
        "transactions of {{ $labels.instance }} ended because no producer answered their checks",
        "Look at the producers: each needs a checker that answers.",
    ),
    Alert(
        "TroveMQSlowCalls",
        "warning",
        "histogram_quantile(0.99, sum by (le, instance, request_code) "
        '(rate(rocketmq_rpc_latency_bucket{is_long_polling="false"}[5m]))) > 1000',
        "10m",
        "1 % of {{ $labels.request_code }} at {{ $labels.instance }} take {{ $value }} ms or longer",
        "Look at the dashboard of the broker: requests that wait, the disk, the processor.",
        firing=sends_per_minute({"1000.0": 90, "3000.0": 99.5, "+Inf": 100}),
        silent=sends_per_minute({"1000.0": 99.5, "3000.0": 100, "+Inf": 100}),
    ),
    counted(
        "TroveMQPauses",
        "warning",
        "trovemq_pauses_total",
        "{{ $labels.instance }} stood still for more than two seconds",
        "The machine was suspended, or has too little memory or processor.",
    ),
    counted(
        "TroveMQRepliesRefused",
        "warning",
        "trovemq_reply_refusals_total",
        "{{ $labels.instance }} refused calls because clients do not read their replies",
        "Look for slow clients: trovemq_reply_connections says how many there are.",
    ),
    Alert(
        "TroveMQAccessRefused",
        "warning",
        "sum by (instance, error) (rate(trovemq_access_refusals_total[5m])) > 1",
        "10m",
        "{{ $labels.instance }} refuses callers with {{ $labels.error }}",
        "The log names the users and addresses (access.refused).",
        firing={series("trovemq_access_refusals_total", 'error="ACCESS_DENIED"'): f"0+120x{MINUTES}"},
        silent={series("trovemq_access_refusals_total", 'error="ACCESS_DENIED"'): f"0+59x{MINUTES}"},
    ),
    Alert(
        "TroveMQFileDescriptors",
        "warning",
        'process_open_fds{job=~"broker|nameserver"} > 0.8 * process_max_fds',
        "10m",
        "{{ $labels.instance }} has {{ $value }} open files and connections, near its limit",
        "Raise the limit (LimitNOFILE, ulimit -n), or look for clients that open too many connections.",
        firing={series("process_open_fds"): steady(81), series("process_max_fds"): steady(100)},
        silent={series("process_open_fds"): steady(80), series("process_max_fds"): steady(100)},
    ),
    *(
        config_state(name, severity, states, wait, summary, action)
        for name, severity, states, wait, summary, action in (
            (
                "TroveMQConfigOwnerAway",
                "warning",
                "stored",
                "5m",
                "{{ $labels.instance }} misses the owner of the configuration: nothing can be changed",
                "Start the owner; if it is lost: `trovemq cluster config-owner NAME`.",
            ),
            (
                "TroveMQConfigWaits",
                "critical",
                "joining|waiting|removed",
                "5m",
                "{{ $labels.instance }} serves no messages: its configuration is {{ $labels.state }}",
                "`trovemq doctor` and /readyz name the cause.",
            ),
            (
                "TroveMQConfigOld",
                "critical",
                "superseded|contradicted",
                "5m",
                "{{ $labels.instance }} does not follow the configuration's owner: it is {{ $labels.state }}",
                "`trovemq cluster config` says what to do.",
            ),
        )
    ),
    Alert(
        "TroveMQConfigDiffers",
        "warning",
        'trovemq_config_entries{problem=~"differing|dropped|failed"} > 0',
        "10m",
        "{{ $value }} entries of the configuration are {{ $labels.problem }} on {{ $labels.instance }}",
        "`trovemq cluster config` names each, with the command that mends it.",
        firing={series("trovemq_config_entries", 'problem="failed"'): steady(1)},
        silent={series("trovemq_config_entries", 'problem="unlisted"'): steady(1)},
    ),
    Alert(
        "TroveMQConfigBehind",
        "warning",
        "trovemq_config_follower_lag > 0",
        "10m",
        "{{ $labels.broker }} lacks {{ $value }} changes of the configuration",
        "Look whether the broker runs, and in its log for config.",
        firing={series("trovemq_config_follower_lag", 'broker="b"'): steady(1)},
        silent={series("trovemq_config_follower_lag", 'broker="b"'): f"0x{MINUTES - 5} 3x5"},
    ),
    counted(
        "TroveMQBrokerLost",
        "critical",
        "trovemq_brokers_lost_total",
        "a broker left the nameserver {{ $labels.instance }} without a word",
        "Look for the broker that does not run or does not reach the nameserver.",
    ),
)


def rules() -> dict[str, Any]:
    """The rule file."""
    return {
        "groups": [
            {
                "name": "trovemq",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.query,
                        "for": alert.wait,
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": alert.summary, "action": alert.action},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }


def cases(rule_file: str) -> dict[str, Any]:
    """For `promtool test rules`: each rule fires for its own instance; of all silent series none fires."""
    firing = {alert.name: alert.firing for alert in ALERTS}
    silent = {alert.name: alert.silent for alert in ALERTS}
    return {
        "rule_files": [rule_file],
        "evaluation_interval": "1m",
        "tests": [
            _case("each rule fires", firing, [_fires(alert.name) for alert in ALERTS]),
            _case("each rule is silent", silent, [(NEVER, "{}", 0)]),
        ],
    }


def _fires(name: str) -> tuple[str, str, int]:
    query = f"count by (alertname, instance) (ALERTS{{alertname='{name}', alertstate='firing'}})"
    return query, f'{{alertname="{name}", instance="{name}"}}', 1


def _case(
    title: str, inputs: Mapping[str, Mapping[str, str]], answers: Iterable[tuple[str, str, int]]
) -> dict[str, Any]:
    return {
        "name": title,
        "interval": "1m",
        "input_series": [
            {"series": name.replace(JOB, f'{JOB}, instance="{instance}"'), "values": values}
            for instance, lines in inputs.items()
            for name, values in lines.items()
        ],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": f"{MINUTES - 1}m",
                "exp_samples": [{"labels": labels, "value": value}],
            }
            for query, labels, value in answers
        ],
    }
