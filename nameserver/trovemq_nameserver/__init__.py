"""The nameserver: which brokers live, and which topics they have. It keeps nothing on disk.

Read in this order: `routes` is the table, without clock or network; `service` serves it by gRPC, with `wire`
and `replies`; `access` and `users` decide who may call; `app` creates and connects the parts.
"""
