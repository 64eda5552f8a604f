"""Callers and their rights. Times, random bytes and files are given; nothing here knows a network.

- `actions`      actions, resources and patterns, by RocketMQ's names
- `rules`        rules of access, and the decision: default deny, any matching deny wins
- `users`        users and their secrets
- `sealing`      secrets sealed by a key that lies outside of the store
- `changes`      each change as a function from one state to the next
- `table`        users and rules on disk, replaced as a whole
- `sessions`     handshakes (SCRAM-SHA-256), sessions and their signed calls
- `rocketmq`     the signature of RocketMQ's own clients

The part that our own clients need, too, is `trovemq_proto.authentication`.
"""
