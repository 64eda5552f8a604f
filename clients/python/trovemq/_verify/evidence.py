"""Compares the ledger with the messages that were read, and determines the faults. No network.

A queue is compared range after range:

| at the place of an acknowledged message there is | then |
| --- | --- |
| that message | its body's hash, keys, queue and offsetMsgId must agree, else it is *altered* |
| a record that cannot be read, or one with its body under another message id | *altered* |
| nothing, or another message | it is missing: decided at the end |
| elsewhere: a message of the run at a place where it was not acknowledged | it is extra: decided at the end |

At the end (`settle`) the extra copies of a message are matched with its sends of unknown outcome, one each,
and then with its missing places (*reordered*: it is at another place). The remaining copies are *duplicated*,
or *phantoms* if no send could have stored them. The remaining missing messages are *lost*. Acknowledged
messages of one producer whose offsets in one queue do not follow the order of sending are *reordered*, too.

Invariants: a marked row is not examined again; the ranges of a queue come in ascending order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from itertools import islice
from typing import Final

from trovemq._verify.findings import ALTERED, DUPLICATED, LOST, PHANTOM, REORDERED, Findings
from trovemq._verify.ledger import REFUSED, UNKNOWN, LedgerEntry, Place, RunHeader
from trovemq._verify.ledger_rows import AckedRow, ExtraRow, KeyQuestion, LedgerRows, UnsettledRow
from trovemq_proto.records import Message

LOAD_ROWS: Final = 10_000
UNREADABLE: Final = ("the record cannot be read",)


class Evidence:
    """The ledger and the messages found so far.

    Args:
        header: The ledger's first line.

    Attributes:
        findings: The faults; complete after `settle` and the look-ups.
        unknown: Number of sends with an unknown outcome.
        refused: Number of refused sends.
    """

    def __init__(self, header: RunHeader) -> None:
        self.header: Final = header
        self.findings = Findings()
        self.unknown = 0
        self.refused = 0
        self._rows = LedgerRows()
        self._ended = False
        self._run_prefix = f"{header.content.run}-"
        self._last_sequences: dict[int, int] = {}  # by producer, in the queue that is being compared

    def close(self) -> None:
        """Removes the temporary file."""
        self._rows.close()

    # --- the ledger -----------------------------------------------------------------------------------

    def load(self, entries: Iterable[LedgerEntry], progress: Callable[[str], None]) -> None:
        """Reads the ledger's lines; call `loaded` afterwards."""
        shared = iter(entries)
        while part := list(islice(shared, LOAD_ROWS)):
            self._rows.add(part)
            self.unknown += sum(entry.outcome == UNKNOWN for entry in part)
            self.refused += sum(entry.outcome == REFUSED for entry in part)
            progress(f"ledger: {self.acknowledged:,} acknowledged messages")

    def loaded(self, *, ended: bool) -> None:
        """After the last line. `ended`: the ledger has a line for every send."""
        self._ended = ended
        self._rows.index_places()

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged messages in the ledger."""
        return self._rows.acknowledged

    def places(self) -> list[Place]:
        """The queues in which anything was acknowledged."""
        return self._rows.places()

    # --- by queue offset ------------------------------------------------------------------------------

    def begin_queue(self) -> None:
        """The next ranges are of another queue."""
        self._last_sequences.clear()

    def skip(self, place: Place, end: int, *, expired_ok: bool) -> None:
        """Nothing below `end` can be read any more: acknowledged messages there are missing, or expired."""
        for row in self._rows.acked_in(place, 0, end):
            self._check_order(row)
            self._rows.mark(row, missing=not expired_ok)
            self.findings.expired += expired_ok

    def compare(
        self,
        place: Place,
        begin: int,
        end: int,
        messages: Mapping[int, Message],
        unreadable: AbstractSet[int],
    ) -> None:
        """Compares the queue's messages at the offsets [begin, end), and notes which of its records cannot be
        read."""
        explained: set[int] = set()
        for row in self._rows.acked_in(place, begin, end):
            self._check_order(row)
            message = messages.get(row.queue_offset)
            if message is None and row.queue_offset in unreadable:
                self._altered(row, "queueOffset", UNREADABLE)
            elif message is None or row.queue_offset in explained or not _same(row, message):
                self._rows.mark(row, missing=True)
            else:
                explained.add(row.queue_offset)
                self._compare_content(row, message, "queueOffset")
        self._rows.add_extra(
            [
                ExtraRow(m.message_id, _keys_text(m), _hash(m), *place, offset)
                for offset, m in messages.items()
                if offset not in explained and m.message_id.startswith(self._run_prefix)
            ]
        )

    def _check_order(self, row: AckedRow) -> None:
        last = self._last_sequences.get(row.producer)
        if last is not None and row.sequence < last:
            how = f"send {row.sequence} of producer {row.producer} lies after its send {last}"
            self.findings.add(REORDERED, **row.fields(), how=how)
        self._last_sequences[row.producer] = row.sequence

    def _compare_content(self, row: AckedRow, message: Message, by: str) -> None:
        pairs = (
            ("topic", self.header.topic, message.topic),
            ("messageId", row.message_id, message.message_id),
            ("keys", row.keys, _keys_text(message)),
            ("bodySha256", row.body_hash, _hash(message)),
            ("queueId", row.queue_id, message.queue_id),
            ("queueOffset", row.queue_offset, message.queue_offset),
            ("offsetMsgId", row.offset_msg_id, message.offset_msg_id),
        )
        differing = [name for name, acknowledged, found in pairs if acknowledged != found]
        if differing:
            self._altered(row, by, differing)

    def _altered(self, row: AckedRow, by: str, differing: Sequence[str]) -> None:
        self.findings.add(ALTERED, **row.fields(), by=by, differing=list(differing))
        self._rows.mark(row, missing=False)

    def _lost(self, row: AckedRow, by: str) -> None:
        self.findings.add(LOST, **row.fields(), by=by)
        self._rows.mark(row, missing=False)

    # --- missing and extra ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Finds missing and surplus messages; after the last queue."""
        for message_id in self._rows.extra_names():
            self._settle_message(message_id)
        for row in self._rows.missing():
            self.findings.add(LOST, **row.fields(), by="queueOffset")

    def _settle_message(self, message_id: str) -> None:
        acked = self._rows.acked_as(message_id)
        sends = self._rows.unsettled_as(message_id)
        extras = self._rows.extra_as(message_id)
        self._check_copies([*acked, *sends], extras)
        unknown = sum(send.outcome == UNKNOWN for send in sends)
        self.findings.unknown_stored += min(unknown, len(extras))
        rest = extras[unknown:]
        # In a run that was ended from outside, one more send of it may have been in flight.
        may_be_unrecorded = not self._ended and not acked
        if may_be_unrecorded and rest:
            self.findings.unrecorded += 1
            rest = rest[1:]
        missing = self._rows.missing_as(message_id)
        for row, extra in zip(missing, rest, strict=False):
            how = f"found at broker {extra.broker}, queue {extra.queue_id}, offset {extra.queue_offset}"
            self.findings.add(REORDERED, **row.fields(), how=how)
            self._rows.mark(row, missing=False)
        kind = DUPLICATED if acked or unknown or may_be_unrecorded else PHANTOM
        for extra in rest[len(missing) :]:
            how = _why_extra(len(acked), unknown, has_lines=bool(sends))
            self.findings.add(kind, **extra.fields(), how=how)

    def _check_copies(self, sends: Sequence[AckedRow | UnsettledRow], extras: Sequence[ExtraRow]) -> None:
        """Checks that every copy equals the message that was sent."""
        for extra in extras if sends else ():
            pairs = (
                ("bodySha256", sends[0].body_hash, extra.body_hash),
                ("keys", sends[0].keys, extra.keys),
            )
            differing = [name for name, sent, found in pairs if sent != found]
            if differing:
                self.findings.add(ALTERED, **extra.fields(), by="queueOffset", differing=differing)

    # --- by identifier and by key ---------------------------------------------------------------------

    def to_look_up(self, sample: int | None) -> Iterator[AckedRow]:
        """Messages without a fault so far: all (None), or a random sample."""
        sampled = sample is not None and sample < self.acknowledged
        if sampled:
            assert sample is not None
            self._rows.sample(random.sample(range(1, self.acknowledged + 1), sample))
        return self._rows.to_look_up(sampled=sampled)

    def looked_up(self, row: AckedRow, by: str, messages: Sequence[Message] | None) -> None:
        """Takes the answer to a look-up by `offsetMsgId` or `messageId`; None: an unreadable record."""
        if self._rows.marked(row):
            return  # the other look-up has reported it already
        if messages is None:
            self._altered(row, by, UNREADABLE)
            return
        place = (row.queue_id, row.queue_offset)
        found = [message for message in messages if (message.queue_id, message.queue_offset) == place]
        if not found and by == "offsetMsgId":
            found = list(messages)
        if found:
            self._compare_content(row, found[0], by)
        else:
            self._lost(row, by)

    def key_questions(self, sample: int | None) -> Iterator[KeyQuestion]:
        """The queries by key, to be called after `to_look_up`; about the same sample."""
        return self._rows.key_questions(sampled=sample is not None and sample < self.acknowledged)

    def answered(self, question: KeyQuestion, messages: Sequence[Message]) -> None:
        """Takes a part of the answer to a query by key; `answer_ended` follows the last part."""
        found = [(m.queue_id, m.queue_offset, m.message_id, _hash(m)) for m in messages]
        self._rows.add_answer(question, found)

    def answer_ended(self, question: KeyQuestion) -> None:
        """Compares the complete answer with the ledger."""
        for row, present in self._rows.unanswered(question):
            if present:
                self._altered(row, "keys", ["messageId or bodySha256"])
            else:
                self._lost(row, "keys")
        self._rows.forget_answer(question)


def _same(row: AckedRow, message: Message) -> bool:
    """Whether the record at the message's place is this message, possibly altered, and not another one."""
    return message.message_id == row.message_id or _hash(message) == row.body_hash


def _keys_text(message: Message) -> str:
    return " ".join(message.keys)


def _hash(message: Message) -> bytes:
    return sha256(message.body).digest()


def _why_extra(acknowledged: int, unknown: int, *, has_lines: bool) -> str:
    if acknowledged or unknown:
        return f"acknowledged {acknowledged} times, unknown {unknown} times, and stored more often"
    return "its sends were refused" if has_lines else "the ledger has no line of it"
