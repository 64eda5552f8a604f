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
from typing import Any, Final

from deploy.monitoring.alert_rules import (
    JOB,
    MINUTES,
    Alert,
    above,
    config_state,
    counted,
    rise_of,
    sends_per_minute,
    series,
    steady,
)
from deploy.monitoring.group_alerts import GROUP_ALERTS

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
    *GROUP_ALERTS,
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
