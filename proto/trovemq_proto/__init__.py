"""The protocol, the errors and the record codec: all that daemons, clients and tools share.

Read in this order: `positions` has the types of offsets and moments; `records` the layout of a record, its
codec and its checks; `errors` the table of errors; `v1` our protocol and `rocketmq` RocketMQ's, as .proto
files with their generated code; `channels` and `tls` the connection of a client; `authentication` its
sessions.
"""
