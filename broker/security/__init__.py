"""Callers and their rights. Times, random bytes and files are given; nothing here knows a network.

- `actions`      actions, resources and patterns, by RocketMQ's names
- `rules`        rules of access, and the decision: default deny, any matching deny wins
- `sealing`      secrets sealed by a key that lies outside of the store
- `creators`     who makes topics and groups
- `quotas`       how much a user, an address or a client may take
- `changes`      each change as a function from one state to the next
- `table`        users and rules on disk, replaced as a whole
- `audit_trail`  audit records as messages of the log
- `rocketmq`     the signature of RocketMQ's own clients

Common to both daemons are `trovemq_daemon.users` (users and their secrets) and `trovemq_daemon.sessions`
(handshakes by SCRAM-SHA-256, sessions and their signed calls). The part that our own clients need, too, is
`trovemq_proto.authentication`.
"""
