"""A network in memory, for tests. Its faults and their times follow from a seed.

`pipe` is one direction of a connection: it cuts, delays, stalls and loses bytes by the seed. `loop` is an
asyncio event loop with such connections instead of sockets. Its clock jumps to the next timer, so that an
hour passes at once, and the same seed gives the same run. A server and a channel of this package run on it
unchanged.
"""
