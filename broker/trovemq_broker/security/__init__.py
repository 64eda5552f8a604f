"""Users, rules of access, quotas. Times, random bytes and files come from the caller; nothing here uses a
network.

- `actions`      actions, resources and patterns, by RocketMQ's names
- `rules`        rules of access, and the decision: denied by default, and by any matching deny
- `sealing`      secrets sealed with a key that is not in the store
- `creators`     the creators of topics and groups
- `quotas`       limits for users, addresses and clients
- `changes`      each change as a function from one state to the next
- `table`        users and rules on disk, replaced as a whole
- `audit_trail`  audit records as messages of the log
- `rocketmq`     the signature of RocketMQ's own clients

Both daemons use `trovemq_daemon.users` (users and their secrets) and `trovemq_daemon.sessions` (handshakes by
SCRAM-SHA-256, sessions and their signed calls). The part that our own clients also need is
`trovemq_proto.authentication`.
"""
