"""Replica groups beside replicated brokers of others: batches, one send at a time, a node that catches up.

- `groups`   the servers of a group, as processes
- `peers`    the other brokers with several servers: Kafka, NATS JetStream, Redis
- `run`      the part `replicas` of `make bench`
- `catch_up` a node with an empty store beside live sends
- `sender`   the process that sends them
- `fail_over` kills of the leader, and planned switch-overs, under a client that sends
"""
