"""The ledger: the outcome of every send of a run, one JSON object a line, in the order of the answers.

| line | when | content |
| --- | --- | --- |
| `"run": "begin"` | first | topic, seed, sizes, and where each queue ended before the run |
| `"outcome": "acknowledged"` | by an acknowledgement | the receipt, keys, bodySha256, producer, sequence |
| `"outcome": "unknown"` | without an answer, or in doubt | the same without a place, the error |
| `"outcome": "refused"` | certainly not stored | the same as unknown |
| `"run": "end"` | last; missing if the run was ended from outside | the summary |

`sequence` counts a producer's sends; a message that is sent again has a line for each of its sends. Each
write is flushed to the operating system: when the verifier is killed, only the last line can be torn, and
sends that were in flight have no line.

Invariants: the first line has the run's header; nothing follows the end; an acknowledged message is not sent
again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from trovemq._verify.content import RunContent
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ACKNOWLEDGED: Final = "acknowledged"
UNKNOWN: Final = "unknown"
REFUSED: Final = "refused"
OUTCOMES: Final = (ACKNOWLEDGED, UNKNOWN, REFUSED)
LINE_BYTES_MAX: Final = 16 << 20  # the header names every queue

Place = tuple[str, int]  # broker, queue id

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class RunHeader:
    """The first line.

    Attributes:
        topic: The topic of every message.
        content: The content of the messages.
        producers: How many sent at a time.
        begins: The end of each queue before the run: no message of the run is below it.
        time: When it began, epoch ms.
    """

    topic: str
    content: RunContent
    producers: int
    begins: Mapping[Place, int]
    time: int

    def to_json(self) -> dict[str, object]:
        """The line's object."""
        queues = [{"broker": b, "queueId": q, "offset": o} for (b, q), o in sorted(self.begins.items())]
        return {
            "run": "begin",
            "topic": self.topic,
            "seed": self.content.seed,
            "size": self.content.size,
            "keyCount": self.content.key_count,
            "producers": self.producers,
            "time": self.time,
            "queues": queues,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunHeader:
        """Raises KeyError, TypeError, ValueError if the object is not a run's header."""
        if fields["run"] != "begin":
            raise ValueError("the first line is not a run's header")
        begins = {(str(q["broker"]), int(q["queueId"])): int(q["offset"]) for q in fields["queues"]}
        content = RunContent(int(fields["seed"]), int(fields["size"]), int(fields["keyCount"]))
        return cls(str(fields["topic"]), content, int(fields["producers"]), begins, int(fields["time"]))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One send with its outcome.

    Attributes:
        outcome: ACKNOWLEDGED, UNKNOWN or REFUSED.
        message_id: The message's UNIQ_KEY.
        keys: Its KEYS property.
        body_hash: SHA-256 of its body.
        broker: The broker that it was sent to.
        queue_id: Its queue.
        producer: Number of the producer.
        sequence: Number of this send among the producer's.
        time: When the outcome was known, epoch ms.
        queue_offset: Its place in the queue; -1 if it was not acknowledged, and then the next fields are
            empty.
        offset_msg_id: RocketMQ's identifier of the place in the log.
        durability: `disk` or `memory`.
        store_timestamp: When the broker stored it, epoch ms.
        error: The error's symbol, if it was not acknowledged.
        copies: How many nodes held it then; 0 if it was not acknowledged.
    """

    outcome: str
    message_id: str
    keys: str
    body_hash: bytes
    broker: str
    queue_id: int
    producer: int
    sequence: int
    time: int
    queue_offset: int = -1
    offset_msg_id: str = ""
    durability: str = ""
    store_timestamp: int = -1
    error: str = ""
    copies: int = 0

    def to_json(self, topic: str) -> dict[str, object]:
        """The line's object."""
        fields: dict[str, object] = {
            "outcome": self.outcome,
            "topic": topic,
            "broker": self.broker,
            "queueId": self.queue_id,
            "messageId": self.message_id,
            "keys": self.keys,
            "bodySha256": self.body_hash.hex(),
            "producer": self.producer,
            "sequence": self.sequence,
            "time": self.time,
        }
        if self.outcome == ACKNOWLEDGED:
            fields["queueOffset"] = self.queue_offset
            fields["offsetMsgId"] = self.offset_msg_id
            fields["durability"] = self.durability
            fields["storeTimestamp"] = self.store_timestamp
            fields["copies"] = self.copies
        else:
            fields["error"] = self.error
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], topic: str) -> LedgerEntry:
        """Raises KeyError, TypeError, ValueError if the object is not a send to the topic."""
        outcome = fields["outcome"]
        if outcome not in OUTCOMES or fields["topic"] != topic:
            raise ValueError("no send of this run")
        acknowledged = outcome == ACKNOWLEDGED
        return cls(
            outcome,
            str(fields["messageId"]),
            str(fields["keys"]),
            bytes.fromhex(fields["bodySha256"]),
            str(fields["broker"]),
            int(fields["queueId"]),
            int(fields["producer"]),
            int(fields["sequence"]),
            int(fields["time"]),
            int(fields["queueOffset"]) if acknowledged else -1,
            str(fields["offsetMsgId"]) if acknowledged else "",
            str(fields["durability"]) if acknowledged else "",
            int(fields["storeTimestamp"]) if acknowledged else -1,
            "" if acknowledged else str(fields["error"]),
            int(fields.get("copies", 1)) if acknowledged else 0,
        )


class LedgerWriter:
    """Writes a new ledger; a context manager. Raises TroveError REQUEST_ILLEGAL if the file exists."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        try:
            self._file = path.open("xb")
        except FileExistsError:
            text = f"{path} exists: each run needs a new ledger"
            raise TroveError(errors.REQUEST_ILLEGAL, text) from None
        except OSError as failure:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{path}: {failure.strerror}") from None
        self._topic = header.topic
        self._write([header.to_json()])

    def add(self, entries: Iterable[LedgerEntry]) -> None:
        """Writes the lines of one answer, in one write."""
        self._write([entry.to_json(self._topic) for entry in entries])

    def end(self, summary: Mapping[str, object]) -> None:
        """Writes the last line: every send has its line now."""
        self._write([{"run": "end", **summary}])

    def _write(self, objects: list[dict[str, object]]) -> None:
        self._file.write("".join([_encode(fields) + "\n" for fields in objects]).encode("ascii"))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class LedgerReader:
    """Reads a ledger line by line; a context manager. `entries` can be iterated once.

    Attributes:
        header: The first line.
        ended: The end line was read: every send of the run has a line.
        torn: The last line was incomplete and was left out.

    Raises:
        TroveError: REQUEST_ILLEGAL if the file cannot be read or is not a ledger.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self.ended = False
        self.torn = False
        try:
            self._file = path.open("rb")
        except OSError as failure:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{path}: {failure.strerror}") from None
        try:
            fields = self._next()
            if fields is None:
                raise self._illegal("it has no header line")
            self.header: Final = RunHeader.from_json(fields)
        except (KeyError, TypeError, ValueError):
            self._file.close()
            raise self._illegal("its first line is not a run's header") from None
        except TroveError:
            self._file.close()
            raise

    def entries(self) -> Iterator[LedgerEntry]:
        """Every send, in the order of the file. Raises TroveError REQUEST_ILLEGAL at an illegal line."""
        topic = self.header.topic
        while (fields := self._next()) is not None:
            if self.ended:
                raise self._illegal("it follows the end of the run")
            if fields.get("run") == "end":
                self.ended = True
                continue
            try:
                entry = LedgerEntry.from_json(fields, topic)
            except (KeyError, TypeError, ValueError):
                raise self._illegal("it is not a send of this run") from None
            yield entry

    def _next(self) -> dict[str, Any] | None:
        """The next line's object; None after the last whole one."""
        line = self._file.readline(LINE_BYTES_MAX)
        if not line:
            return None
        self._number += 1
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            return fields
        if not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
            self.torn = True
            return None
        raise self._illegal("it is not JSON object")

    def _illegal(self, why: str) -> TroveError:
        text = f"line {self._number} of {self._path}: {why}"
        return TroveError(errors.REQUEST_ILLEGAL, text, line=self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
