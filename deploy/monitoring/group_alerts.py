"""The alert rules of replica groups; the others, and the fields of a rule, are in alerts.py."""

from __future__ import annotations

from typing import Final

from deploy.monitoring.alert_rules import MINUTES, Alert, counted, series, steady

GROUP_ALERTS: Final = (
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
        "TroveMQLogNotKept",
        "warning",
        "trovemq_group_log_not_kept > 0",
        "0m",
        "the log of the group {{ $labels.group }} is not kept for {{ $labels.node }}, which lags or is away",
        "Start it soon: once records that it lacks are removed, it begins again with an empty log."
        " For longer absences set replica_retention_ms and replica_retention_bytes_max higher.",
        firing={series("trovemq_group_log_not_kept", 'group="p", node="c"'): steady(1)},
        silent={series("trovemq_group_log_not_kept", 'group="q", node="c"'): steady(0)},
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
)
