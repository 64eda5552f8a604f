"""The nameserver: which brokers live, and which topics they have. It keeps nothing on disk.

Read in this order: `routes` is the table, without clock or network, with `topics`, `broker`, `changes` and
`lost`; `service` serves it to clients by gRPC, with `replies`, and `registration` to brokers, with
`heartbeats`; `wire` translates; `access` and `users` decide who may call; `app` creates and connects the
parts.
"""
