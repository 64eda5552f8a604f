"""One HTTP/2 connection without I/O: `receive` bytes and get events; call, then `take_output` and write it.

server = Connection(client_side=False)
for kind, stream, value, ended in server.receive(data):
    if kind == events.HEADERS:
        server.send_headers(stream, server.encode([(b":status", b"200")]))
        server.send_data(stream, [b"hello"], 5, end=True)
transport.writelines(server.take_output())
"""

from __future__ import annotations

from collections.abc import Iterable

from trovemq_rpc.http2.headers import Field
from trovemq_rpc.http2.receiving import Receiving
from trovemq_rpc.http2.state import encode_block


class Connection(Receiving):
    """Both directions."""

    @staticmethod
    def encode(fields: Iterable[Field]) -> bytes:
        """A header block. It holds for every connection, so it may be kept and sent again."""
        return encode_block(fields)

    @property
    def drained(self) -> bool:
        """No stream is open, and none may begin."""
        return not self.streams and (
            self.failed or self.goaway_received is not None or self.goaway_sent is not None
        )
