"""Receipt handles: the text by which a client acknowledges, changes or forwards a message.

    head "." offset "." check          head = kind "." queue "." lease "." until "." renewed

| part    | as                                                                              |
|---------|---------------------------------------------------------------------------------|
| kind    | hex: 0 the topic itself, 1 and 2 RocketMQ's pop retry topics, 3 its classic one |
| queue   | hex: queue id                                                                   |
| lease   | hex: number of the lease                                                        |
| until   | hex: epoch ms at which the lease was to end at first; a renewal leaves it as is |
| renewed | 1 = the broker renews the lease                                                 |
| offset  | hex: queue offset                                                               |
| check   | 8 hex digits: CRC-32 of group, topic, broker and all bytes before               |

A receipt stands for all handles of one head; requests name the offsets beside it:

    head "." head check

| part       | as                                                                                        |
|------------|-------------------------------------------------------------------------------------------|
| head check | 8 hex digits: CRC-32 of group, topic, broker, and the head with its dot; a handle's CRC   |
|            | continues this one                                                                        |

Every character is allowed in a URL. To clients the texts are opaque; the SDK makes the handle of an offset
from its receipt (trovemq_proto.receipts).

Invariant: a HandleReader accepts only handles and receipts that were made for the same group and topic on the
same broker: several brokers give leases and queues the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.receipts import handle_of

HEAD_SIZE_MAX: Final = 96
HEADS_KEPT: Final = 16
"""For each group and topic, of leases whose handles come mixed: 3 KB."""


class SourceKind(IntEnum):
    """Where a message lies that a group receives from a topic. Numbers are stable: handles carry them."""

    TOPIC = 0
    POP_RETRY = 1  # %RETRY%group_topic
    POP_RETRY_V2 = 2  # %RETRY%group+topic
    CLASSIC_RETRY = 3  # %RETRY%group, of every topic


_KINDS: Final = tuple(SourceKind)


class HandleHead(NamedTuple):
    """The common part of the handles of one lease."""

    kind: SourceKind
    queue_id: QueueId
    lease: int
    granted_until_ms: int
    renewed: bool


def handle_seed(group: str, topic: str, broker: str = "") -> int:
    """The seed that binds handles to a group and a topic on a broker."""
    return crc32(f"{group}\0{topic}\0{broker}".encode("utf-8", "replace"))


def broker_of_handle(handle: bytes, group: str, topic: str, brokers: Iterable[str]) -> str | None:
    """The first of these brokers that made the handle for group and topic; None if none of them did."""
    text, _, check = handle.rpartition(b".")
    begun = handle_seed(group, topic)
    for broker in brokers:
        seed = crc32(broker.encode(), begun)
        if b"%08x" % crc32(text, seed) == check and HandleReader(seed).read_mixed([handle]):
            return broker
    return None


def handle_head(kind: int, queue_id: QueueId, lease: int, granted_until_ms: int, renewed: bool) -> str:
    """The part that the handles of one lease share."""
    return f"{kind:x}.{queue_id:x}.{lease:x}.{granted_until_ms:x}.{renewed:d}"


def encode_receipt(seed: int, head: str) -> str:
    """The receipt that stands for all offsets under a lease."""
    return f"{head}.{crc32(f'{head}.'.encode(), seed):08x}"


def encode_handle(seed: int, head: str, offset: int) -> str:
    return handle_of(encode_receipt(seed, head), offset)


class HandleReader:
    """Reads the handles and receipts of one group and topic on one broker."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._text = ""
        self._check = 0
        self._head = HandleHead(SourceKind.TOPIC, QueueId(0), 0, EpochMs(0), False)
        self._heads: dict[bytes, tuple[HandleHead, int]] = {}
        """By text, with the check's value after it: heads of handles that came among others."""

    def read_mixed(self, handles: Sequence[bytes]) -> list[tuple[HandleHead, list[tuple[int, int]]]]:
        """The handles by lease: (queue offset, place in `handles`) of each. Left out are those that are
        not handles of the group and topic."""
        heads = self._heads
        found: dict[bytes, list[tuple[int, int]]] = {}
        for place, handle in enumerate(handles):
            try:
                text, digits, check = handle.rsplit(b".", 2)
                known = heads.get(text) or self._parsed(text.decode("ascii"))
                if b"%08x" % crc32(digits, known[1]) != check:
                    continue
                offset = int(digits, 16)
            except (ValueError, IndexError):
                continue
            if text in found:
                found[text].append((offset, place))
            else:
                heads[text] = known
                found[text] = [(offset, place)]
        by_lease = [(heads[text][0], places) for text, places in found.items()]
        if len(heads) > HEADS_KEPT:
            heads.clear()
        return by_lease

    def read_receipt(self, receipt: str) -> HandleHead:
        """The lease that the receipt names; the same object for consecutive calls with the same receipt.

        Raises TroveError RECEIPT_HANDLE_ILLEGAL if it is not a receipt of the group and topic.
        """
        try:
            text, check = receipt.rsplit(".", 1)
            if text != self._text:
                self._read_head(text)
            if f"{self._check:08x}" == check:
                return self._head
        except (ValueError, IndexError):
            self._text = ""
        raise illegal_handle("is not a receipt of this group and topic")

    def _read_head(self, text: str) -> None:
        self._head, self._check = self._parsed(text)
        self._text = text

    def _parsed(self, text: str) -> tuple[HandleHead, int]:
        """The head, and the check's value after it. Raises ValueError, IndexError if it is none."""
        if len(text) > HEAD_SIZE_MAX:
            raise ValueError(text[:HEAD_SIZE_MAX])
        kind, queue_id, lease, until, renewed = text.split(".")
        head = HandleHead(
            _KINDS[int(kind, 16)],
            QueueId(int(queue_id, 16)),
            int(lease, 16),
            EpochMs(int(until, 16)),
            renewed == "1",
        )
        return head, crc32(f"{text}.".encode(), self._seed)


def illegal_handle(what: str) -> TroveError:
    return TroveError(errors.RECEIPT_HANDLE_ILLEGAL, f"the receipt handle {what}", field="receipt_handle")
