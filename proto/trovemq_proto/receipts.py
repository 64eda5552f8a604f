"""The receipt of consecutive messages that one receive delivered, and the receipt handle of each.

    receipt = head "." check          handle = head "." offset "." check

| part   | as                                                                                             |
|--------|------------------------------------------------------------------------------------------------|
| head   | names the lease; only the broker reads it (trovemq_store/events/receipt_handle.py)             |
| offset | hex: queue offset                                                                              |
| check  | 8 hex digits: CRC-32 of a prefix that the broker knows, and of all bytes before the last dot   |
|        | (of a receipt: with that dot)                                                                  |
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32


def handle_of(receipt: str, offset: int) -> str:
    """The receipt handle of one message. Raises ValueError if `receipt` is not a receipt."""
    return handles_of(receipt, (offset,))[0]


def handles_of(receipt: str, offsets: Iterable[int]) -> list[str]:
    """The receipt handles of these messages. Raises ValueError if `receipt` is not a receipt."""
    head, check = receipt.rsplit(".", 1)
    before = int(check, 16)
    handles = []
    for offset in offsets:
        digits = f"{offset:x}"
        handles.append(f"{head}.{digits}.{crc32(digits.encode(), before):08x}")
    return handles
