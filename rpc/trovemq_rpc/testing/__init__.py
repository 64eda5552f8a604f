"""A network in memory, for tests: connections whose faults and times follow from a seed.

`pipe` is one direction of a connection, cut, delayed, stalled and lost by a seed. `loop` is an asyncio
event loop with such connections in place of sockets and a clock that only tests move: an hour of it
passes in no time, and the same seed gives the same run. A server and a channel of this package run in it
unchanged. Imports no other part of it.
"""
