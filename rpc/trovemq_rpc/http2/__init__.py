"""HTTP/2 (RFC 9113) without I/O. Received bytes become events, and calls become pieces to write; there is no
socket, event loop or clock.

| to read | has |
| --- | --- |
| `constants`, `frames` | the protocol's numbers; frames as bytes |
| `streams` | a stream, and the table of its states |
| `limits`, `errors` | the limits of a peer, and the ends of a connection or a stream |
| `headers` | the rules of a header list |
| `hpack`, `hpack_tables`, `huffman` | header compression (RFC 7541), which needs none of the others |
| `state`, `sending` | a connection's state, and the half that writes |
| `control`, `header_blocks`, `receiving` | the half that reads, by kinds of frames |
| `events`, `connection` | the layer above sees these |

Nothing here imports another package of trovemq_rpc.
"""
