"""HTTP/2 (RFC 9113) without I/O: bytes in, events out; calls in, pieces to write out. No socket,
loop or clock.

Read `constants`, `frames`, `streams` (the state table), `limits`, `headers`, then `state`, `sending`,
`control`, `header_blocks`, `receiving` and `connection`. `hpack` (RFC 7541) depends on none of them. Imports
nothing else of this package.
"""
