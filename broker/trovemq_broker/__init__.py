"""The broker daemon. A message goes produce -> store -> fetch, query or groups -> server.

- `produce`      checks, batches and appends clients' messages, and answers when they are durable
- (`trovemq_store`, a separate library: the log, its indexes, recovery)
- `fetch`        pull by queue offset, long polls, committed offsets
- `query`        messages by key, id, time, condition
- `groups`       consumer groups: delivery, timers, transactions, and their recoverable state
- `track`        the track of a message, and the list of delayed messages
- `security`     users, rules of access, quotas, audit records
- `admin`        changes of topics and groups, durable before they are answered
- `maintenance`  background work: retention, flushes, snapshots, the trees
- `server`       the services: `native` and `rocketmq` (gRPC), `monitoring` (metrics)
- `cluster`      registration at nameservers
- `daemon`       settings, `app` (start and stop), and `broker_services`, which alone puts everything together
- `tools`        command line for a stopped store

Imports point from the bottom of `daemon` towards `produce` and `fetch`; the contract in pyproject.toml has
the order and every package in it.
"""
