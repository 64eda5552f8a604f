"""gRPC on HTTP/2 without I/O: messages in DATA, metadata, status, deadlines, compression. There is no socket,
event loop or clock.

The documents that the modules name are those of the grpc repository: doc/PROTOCOL-HTTP2.md ("gRPC over
HTTP/2"), doc/compression.md, doc/http-grpc-status-mapping.md, doc/connection-backoff.md.
"""
