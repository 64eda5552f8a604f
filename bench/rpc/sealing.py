"""The cost of TLS without a network: a request and its answer between two ssl objects on memory buffers."""

from __future__ import annotations

import time
from statistics import median

import trovemq_rpc as rpc
from bench.rpc.processes import Certificate
from trovemq_rpc.tls import Tls

EXCHANGES = 2_000


def sealing_us(certificate: Certificate, body: bytes) -> float:
    """Microseconds for a body there and back, sealed and opened by each end: the median."""
    identity = (certificate.key.read_bytes(), certificate.chain.read_bytes())
    server = Tls(rpc.ssl_server_credentials([identity]).context, True)
    trust = rpc.ssl_channel_credentials(certificate.chain.read_bytes())
    client = Tls(trust.context, False, "127.0.0.1")
    while not (client.established and server.established):
        for one, other in ((client, server), (server, client)):
            one.handshake()
            other.feed(memoryview(one.take_output()))
    buffer = memoryview(bytearray(1 << 16))
    client.read_into(buffer)  # the server's tickets
    times = []
    for _ in range(EXCHANGES):
        begun = time.perf_counter()
        for one, other in ((client, server), (server, client)):
            other.feed(memoryview(one.seal((body,))))
            assert other.read_into(buffer) == len(body)
        times.append(time.perf_counter() - begun)
    return median(times) * 1e6
