"""The errors 4xx of the table in errors.py, from where they are imported: the cluster."""

from __future__ import annotations

from trovemq_proto.error_table import TABLE

_add = TABLE.add

BROKER_NAME_TAKEN = _add(
    "BROKER_NAME_TAKEN", 400, "ALREADY_EXISTS", False,
    "Another live broker is registered under this name.",
    "Give each broker its own --name.",
)  # fmt: skip
BROKER_NOT_FOUND = _add(
    "BROKER_NOT_FOUND", 401, "NOT_FOUND", True,
    "No live broker of that name, or none that has the topic, is in the routes.",
    "List the brokers: trovemq cluster.",
)  # fmt: skip
BROKER_AMBIGUOUS = _add(
    "BROKER_AMBIGUOUS", 402, "FAILED_PRECONDITION", False,
    "Several brokers have this queue.",
    "Choose one of those that the message lists with --broker NAME.",
)  # fmt: skip
BROKER_UNREACHABLE = _add(
    "BROKER_UNREACHABLE", 403, "UNAVAILABLE", True,
    "The server did not answer.",
    "Check that it runs and that the address is right.",
)  # fmt: skip
TRANSACTION_BROKERS = _add(
    "TRANSACTION_BROKERS", 404, "INVALID_ARGUMENT", False,
    "The topics and messages of one atomic transaction are not all on one broker.",
    "Put its topics on one broker, or use one transaction for each broker; the message names them.",
)  # fmt: skip
TLS_FAILED = _add(
    "TLS_FAILED", 405, "UNAVAILABLE", False,
    "Client and server do not agree on TLS: one of them speaks none, or does not trust the other's certificate.",
    "The message says which; docs/how-to/tls.md shows how both are set up.",
)  # fmt: skip
BROKER_NOT_EMPTY = _add(
    "BROKER_NOT_EMPTY", 409, "FAILED_PRECONDITION", False,
    "The broker has messages or topics that would be lost with it; the message counts them.",
    "Let the groups consume them, and try again; or give them up: trovemq broker remove NAME --accept-loss.",
)  # fmt: skip

CLUSTER_RUNNING = _add(
    "CLUSTER_RUNNING", 420, "FAILED_PRECONDITION", False,
    "Another `trovemq cluster local` runs in this directory.",
    "Stop it (the message has its process id), or choose another --dir.",
)  # fmt: skip
CLUSTER_DIRECTORY_ILLEGAL = _add(
    "CLUSTER_DIRECTORY_ILLEGAL", 421, "FAILED_PRECONDITION", False,
    "The directory cannot be used for a local cluster, or its cluster.json is damaged or of a newer version.",
    "Choose another --dir; or delete cluster.json: the brokers' stores stay, and the daemons get new ports.",
)  # fmt: skip
ADDRESS_IN_USE = _add(
    "ADDRESS_IN_USE", 422, "UNAVAILABLE", True,
    "Another process listens on an address that a daemon of the local cluster has.",
    "Stop that process; or delete cluster.json in the cluster's directory: the daemons get new ports.",
)  # fmt: skip
DAEMON_FAILED = _add(
    "DAEMON_FAILED", 423, "UNAVAILABLE", False,
    "A daemon of the local cluster ended, or was not ready in time.",
    "Read the reason in its log, which the message names, and correct it; the stores stay.",
)  # fmt: skip
# Codes from 430: the cluster's configuration (trovemq_broker.cluster_config).
CONFIG_OWNER_UNREACHABLE = _add(
    "CONFIG_OWNER_UNREACHABLE", 430, "UNAVAILABLE", True,
    "The broker that owns the cluster's configuration does not answer, so nothing of it can be changed; messages flow on.",
    "Start the owner that the message names, and try again; if it is lost: trovemq cluster config-owner NAME.",
)  # fmt: skip
CONFIG_VERSION_CONFLICT = _add(
    "CONFIG_VERSION_CONFLICT", 431, "ABORTED", True,
    "The entry was changed after the version that the change names.",
    "Read the entry again, decide again, and send the change with its present version.",
)  # fmt: skip
CONFIG_OWNER_MOVED = _add(
    "CONFIG_OWNER_MOVED", 432, "UNAVAILABLE", True,
    "This broker no longer owns the cluster's configuration: another one has taken it over.",
    "Send the change to the owner that the message names; one that was in doubt may have to be sent again.",
)  # fmt: skip
CONFIG_GENERATION_OLD = _add(
    "CONFIG_GENERATION_OLD", 433, "FAILED_PRECONDITION", False,
    "The table is of an older generation than this broker has seen, or has promised to wait for.",
    "Let the sender follow the present owner (trovemq cluster); if there is none: trovemq cluster config-owner NAME.",
)  # fmt: skip
CONFIG_OTHER_CLUSTER = _add(
    "CONFIG_OTHER_CLUSTER", 434, "FAILED_PRECONDITION", False,
    "The configuration is that of another cluster than the one that this broker's store belongs to.",
    "Correct config_owner, or start with an empty store; an owner that lost its disk: trovemq cluster config-owner NAME.",
)  # fmt: skip
CONFIG_GAP = _add(
    "CONFIG_GAP", 435, "OUT_OF_RANGE", True,
    "Changes of the configuration do not continue where this broker's table ends.",
    "The broker connects to the owner again and gets the missing part; report it if it stays.",
)  # fmt: skip
CONFIG_OWNER_OLD = _add(
    "CONFIG_OWNER_OLD", 436, "FAILED_PRECONDITION", False,
    "The owner's table is older than, or differs from, the one that a broker has of the same generation.",
    "The owner's store was put back from an older copy: run trovemq cluster config-owner NAME, which takes the highest copy.",
)  # fmt: skip
CONFIG_SETTINGS_DIFFER = _add(
    "CONFIG_SETTINGS_DIFFER", 437, "FAILED_PRECONDITION", False,
    "A topic, group, user, rule or quota of this name exists on this broker with other settings than in the cluster's table.",
    "Make both equal: alter the cluster's entry, or delete the one on this broker; until then the broker keeps its settings.",
)  # fmt: skip
CONFIG_MEMBER_REMOVED = _add(
    "CONFIG_MEMBER_REMOVED", 438, "FAILED_PRECONDITION", False,
    "This broker was removed from its cluster, and its store still has the cluster's configuration.",
    "Stop it; to use the machine again, start a broker with an empty store, which joins as a new one.",
)  # fmt: skip
CONFIG_OWNER_STAYS = _add(
    "CONFIG_OWNER_STAYS", 439, "FAILED_PRECONDITION", False,
    "The broker owns the cluster's configuration, so it cannot be removed from the cluster.",
    "Let another broker take the configuration over first: trovemq cluster config-owner NAME.",
)  # fmt: skip
BROKER_DRAINED = _add(
    "BROKER_DRAINED", 440, "FAILED_PRECONDITION", False,
    "A topic was to get queues on a broker that is drained, or all brokers of the cluster are.",
    "Name other brokers, or let it take new messages again: trovemq broker undrain NAME.",
)  # fmt: skip
FIFO_BROKER_AWAY = _add(
    "FIFO_BROKER_AWAY", 443, "UNAVAILABLE", True,
    "The broker of this message group is away or drained, and the sends of a FIFO topic wait for their broker.",
    "Start the broker that the message names, and send again; to use other brokers: trovemq topic spread TOPIC --brokers A,B.",
)  # fmt: skip
FIFO_SENDER_UNKNOWN = _add(
    "FIFO_SENDER_UNKNOWN", 448, "UNAVAILABLE", True,
    "This broker does not know yet by which address the client came, so not which broker stores its message group: it has started since.",
    "Send again: RocketMQ's clients open their telemetry stream again after a second; other programs ask for a route, or send settings, first.",
)  # fmt: skip
TOPIC_CLOSED = _add(
    "TOPIC_CLOSED", 444, "UNAVAILABLE", True,
    "The topic takes no new messages while its queues move to other brokers, or it waits for its deletion; senders wait.",
    "Send again; if `trovemq topic spread` has stopped, run it again, or open the topic: trovemq topic alter NAME --writes open.",
)  # fmt: skip
FIFO_TOPIC_OPEN = _add(
    "FIFO_TOPIC_OPEN", 445, "FAILED_PRECONDITION", False,
    "The queues of a FIFO topic were to change while it takes messages, and its message groups would lose their order.",
    "Run trovemq topic spread NAME --brokers A,B (with --queues N for their number), which closes the topic first; if another one has opened it, run it again.",
)  # fmt: skip

CONFIG_ABSENT = _add(
    "CONFIG_ABSENT", 446, "FAILED_PRECONDITION", False,
    "No broker that answers has a configuration of the cluster: each one's topics, groups and users are its own.",
    "To share one, set config_owner=NAME on the other brokers, and restart them; if brokers that have it are away, start one.",
)  # fmt: skip
CONFIG_OWNER_ALREADY = _add(
    "CONFIG_OWNER_ALREADY", 447, "FAILED_PRECONDITION", False,
    "The broker owns the cluster's configuration already.",
    "Nothing is to be done; to have another broker's copy continue, name it with --source.",
)  # fmt: skip

# Codes from 450: groups of replicas (trovemq_broker.replication).
GROUP_MISMATCH = _add(
    "GROUP_MISMATCH", 450, "FAILED_PRECONDITION", False,
    "A node of another replica group, or of another cluster, wants to follow this leader.",
    "Correct the group's name or the leader's address in the node's settings.",
)  # fmt: skip
NOT_A_MEMBER = _add(
    "NOT_A_MEMBER", 451, "PERMISSION_DENIED", False,
    "The node is not a member of this replica group.",
    "Add it: trovemq cluster add NODE.",
)  # fmt: skip
SEGMENT_SIZE_MISMATCH = _add(
    "SEGMENT_SIZE_MISMATCH", 452, "FAILED_PRECONDITION", False,
    "Two nodes of a replica group have segments of different sizes, so that their logs cannot be equal.",
    "Give the node the size of its leader, which the message names, and an empty store.",
)  # fmt: skip
EPOCH_STALE = _add(
    "EPOCH_STALE", 453, "FAILED_PRECONDITION", True,
    "A later leadership has begun: frames and reports of this one count no more.",
    "Nothing: the node follows the new leader.",
)  # fmt: skip
NOT_LEADER = _add(
    "NOT_LEADER", 454, "UNAVAILABLE", True,
    "The node does not lead its replica group: it takes no messages and has no followers.",
    "Nothing: clients and followers call the leader, which the message names if it is known.",
)  # fmt: skip
REPLICA_FRAME_ILLEGAL = _add(
    "REPLICA_FRAME_ILLEGAL", 455, "INVALID_ARGUMENT", False,
    "A frame between two nodes has a wrong place, size, CRC, or number, and nothing of it was stored.",
    "Look at both nodes' versions and at the network between them; the message says which frame.",
)  # fmt: skip
REPLICA_STREAM_TAKEN = _add(
    "REPLICA_STREAM_TAKEN", 456, "ABORTED", False,
    "The node has opened another stream to its leader, which ends the one before.",
    "Nothing, unless it repeats: then two nodes have one name.",
)  # fmt: skip
NOT_ENOUGH_REPLICAS = _add(
    "NOT_ENOUGH_REPLICAS", 457, "UNAVAILABLE", True,
    "Fewer nodes of the replica group are here than the step needs; nothing was stored.",
    "Start the missing nodes; trovemq cluster status names them.",
)  # fmt: skip
REPLICA_TIMEOUT = _add(
    "REPLICA_TIMEOUT", 458, "DEADLINE_EXCEEDED", False,
    "The message is in the log, but the copies did not have it within replica_ack_timeout_ms.",
    "It may be committed a moment later, or be cut by the next leader: sending again may make a second message, unless the producer numbers its messages.",
)  # fmt: skip
REPLICA_STATE_ILLEGAL = _add(
    "REPLICA_STATE_ILLEGAL", 459, "FAILED_PRECONDITION", False,
    "The replica group, or this node of it, is not in the state that the command needs.",
    "The message says in which it is; trovemq cluster status shows the whole group.",
)  # fmt: skip
REPLICA_OFFSET_MISMATCH = _add(
    "REPLICA_OFFSET_MISMATCH", 460, "OUT_OF_RANGE", False,
    "Bytes of another node's log were to be appended elsewhere than at the end of this one.",
    "Compare the epochs of both logs, and continue where this log ends.",
)  # fmt: skip
REPLICA_BYTES_ILLEGAL = _add(
    "REPLICA_BYTES_ILLEGAL", 461, "DATA_LOSS", False,
    "Bytes of another node's log are not whole records of the place that they are for.",
    "Read them again from that node; if it stays, check its store: trovemq store verify.",
)  # fmt: skip
STORE_DIVERGED = _add(
    "STORE_DIVERGED", 462, "DATA_LOSS", False,
    "The log differs from another node's below the known commit offset, and was not cut.",
    "Keep this store aside, and find out which node has the acknowledged messages before either is removed.",
)  # fmt: skip
# Codes from 470: the agreement of a replica group's nodes (trovemq_broker.coordination).
COORDINATION_UNAVAILABLE = _add(
    "COORDINATION_UNAVAILABLE", 470, "UNAVAILABLE", True,
    "etcd, by which the nodes of a replica group agree, has not answered: whether a change was made is unknown.",
    "Start etcd, or correct etcd_endpoints; the group works on meanwhile, but no other node can become its leader.",
)  # fmt: skip
COORDINATION_ILLEGAL = _add(
    "COORDINATION_ILLEGAL", 471, "FAILED_PRECONDITION", False,
    "The keys of a replica group in etcd cannot be right: a value does not parse, or is older than one that a node has seen.",
    "Was etcd restored from an older copy, or replaced, or do two clusters share a prefix? The message has the value.",
)  # fmt: skip
REPLICA_LAG_EXCEEDED = _add(
    "REPLICA_LAG_EXCEEDED", 475, "FAILED_PRECONDITION", False,
    "A replica has a longer lag than the request's max_lag_ms, or has not had all of its leader's log yet.",
    "Read from the leader, from another replica, or allow a longer lag; trovemq cluster status names the leader.",
)  # fmt: skip
