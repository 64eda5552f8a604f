"""gRPC on HTTP/2 without I/O: message framing, metadata, status, deadlines, compression. No
socket, loop or clock.
"""
