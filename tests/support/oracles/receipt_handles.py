"""One receipt handle alone, as the broker read it before it read all of a call by lease."""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

from trovemq_store.events.receipt_handle import HandleHead, HandleReader, illegal_handle


def read_handle(seed: int, handle: str) -> tuple[HandleHead, int]:
    """The lease and the queue offset. TroveError RECEIPT_HANDLE_ILLEGAL if it is not a handle of the group
    and topic of this seed."""
    try:
        text, digits, check = handle.rsplit(".", 2)
        head, value = HandleReader(seed)._parsed(text)
        if f"{crc32(digits.encode(), value):08x}" == check:
            return head, int(digits, 16)
    except (ValueError, IndexError):
        pass
    raise illegal_handle("is not a handle of this group and topic")
