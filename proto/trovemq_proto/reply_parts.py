"""Large replies of WatchRoutes in parts, so that no message of it is large.

The bytes of a ClusterReply are cut. Each slice travels in a message of its kind that has nothing else:

| field        | content                                    |
|--------------|--------------------------------------------|
| `part`       | a slice; the slices, joined, are the reply |
| `more_parts` | true, except in the last one               |

A client that joins them says so (`WatchRoutesRequest.parts`). One that does not gets the whole reply.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto.v1 import route_pb2

PART_SIZE: Final = 1 << 20
"""Of a slice: far below the 4 MiB that gRPC accepts by default."""
WHOLE_SIZE_MAX: Final = 512 << 20
"""Of a reply: more than the 2,000,000 routes that a nameserver has, with the longest names."""

_PART: Final = route_pb2.ClusterReply.PART_FIELD_NUMBER << 3 | 2
assert _PART < 0x80, "the tag has one byte"


def part_of(reply: bytes, begin: int, size: int) -> bytes:
    """The message with the slice of a reply that begins there."""
    more = begin + size < len(reply)
    part = memoryview(reply)[begin : begin + size].tobytes()
    return route_pb2.ClusterReply(part=part, more_parts=more).SerializeToString()


class PartJoiner:
    """Joins the parts of the replies of one stream."""

    def __init__(self, size_max: int = WHOLE_SIZE_MAX) -> None:
        self._size_max = size_max
        self._joined = bytearray()  # small parts would cost more as a list

    def add(self, message: bytes) -> bytes | None:
        """The whole reply that ends with this message; None while parts are missing.

        Raises ValueError for a reply that is too large, or whose parts are interrupted, and DecodeError."""
        if message[:1] != bytes((_PART,)):
            if self._joined:
                raise ValueError("a reply between the parts of another one")
            return message
        read = route_pb2.ClusterReply.FromString(message)
        if not read.part:
            raise ValueError("a part without bytes")
        if len(self._joined) + len(read.part) > self._size_max:
            raise ValueError(f"a reply of more than {self._size_max:,} bytes")
        self._joined += read.part
        if read.more_parts:
            return None
        whole, self._joined = bytes(self._joined), bytearray()
        return whole
