"""A ledger as rows of an SQLite database in a temporary file, so that memory does not grow with it.

| table     | a row is                                                                   |
|-----------|----------------------------------------------------------------------------|
| acked     | an acknowledged message; `row` counts from 1 in the ledger's order         |
| unsettled | a send with an unknown or refused outcome                                  |
| faulty    | an acknowledged message that is faulty, or may be (`missing`: decided later) |
| extra     | a message of the run at a place where it was not acknowledged               |
| sampled   | an acknowledged message that is looked up, if not all are                   |
| answered  | a message in an answer to a query by key                                    |
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from trovemq._verify.ledger import ACKNOWLEDGED, LedgerEntry, Place

CACHE_KIB: Final = 65_536
PAGE_ROWS: Final = 1_000

_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE acked (row INTEGER PRIMARY KEY, message_id TEXT, keys TEXT, body_hash BLOB, broker TEXT,
    queue_id INTEGER, queue_offset INTEGER, offset_msg_id TEXT, store_timestamp INTEGER, durability TEXT,
    copies INTEGER, producer INTEGER, sequence INTEGER);
CREATE TABLE unsettled (message_id TEXT, outcome TEXT, keys TEXT, body_hash BLOB);
CREATE TABLE faulty (row INTEGER PRIMARY KEY, missing INTEGER);
CREATE TABLE extra (message_id TEXT, keys TEXT, body_hash BLOB, broker TEXT, queue_id INTEGER,
    queue_offset INTEGER);
CREATE TABLE sampled (row INTEGER PRIMARY KEY);
CREATE TABLE answered (question INTEGER, queue_id INTEGER, queue_offset INTEGER, message_id TEXT,
    body_hash BLOB);
CREATE INDEX answers ON answered (question, queue_id, queue_offset);
"""


@dataclass(frozen=True, slots=True)
class AckedRow:
    """A row of `acked`: an acknowledged message as the ledger has it."""

    row: int
    message_id: str
    keys: str
    body_hash: bytes
    broker: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str
    store_timestamp: int
    durability: str
    copies: int
    producer: int
    sequence: int

    def fields(self) -> dict[str, object]:
        """The fields that name it in a fault."""
        return {
            "messageId": self.message_id,
            "broker": self.broker,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "offsetMsgId": self.offset_msg_id,
            "durability": self.durability,
            "copies": self.copies,
        }


@dataclass(frozen=True, slots=True)
class UnsettledRow:
    """A row of `unsettled`."""

    message_id: str
    outcome: str
    keys: str
    body_hash: bytes


@dataclass(frozen=True, slots=True)
class ExtraRow:
    """A row of `extra`."""

    message_id: str
    keys: str
    body_hash: bytes
    broker: str
    queue_id: int
    queue_offset: int

    def fields(self) -> dict[str, object]:
        """The fields that name it in a fault."""
        return {
            "messageId": self.message_id,
            "broker": self.broker,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
        }


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """Query `number` by key: it must find the messages of one broker with that key and store time."""

    number: int
    key: str
    broker: str
    begin: int
    end: int


class LedgerRows:
    """The tables. An iterator may be read while other tables are written."""

    def __init__(self) -> None:
        self._database: Final = sqlite3.connect("")  # a temporary file that is removed with the connection
        self._database.executescript(_SCHEMA)
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self.acknowledged = 0

    def close(self) -> None:
        """Removes the temporary file."""
        self._database.close()

    def _all(self, query: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]  # as the table has them
        return self._database.execute(query, values).fetchall()

    # --- the ledger -----------------------------------------------------------------------------------

    def add(self, entries: Sequence[LedgerEntry]) -> None:
        """The next lines of the ledger."""
        acked = [entry for entry in entries if entry.outcome == ACKNOWLEDGED]
        self._database.executemany(
            "INSERT INTO acked VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    row,
                    entry.message_id,
                    entry.keys,
                    entry.body_hash,
                    entry.broker,
                    entry.queue_id,
                    entry.queue_offset,
                    entry.offset_msg_id,
                    entry.store_timestamp,
                    entry.durability,
                    entry.copies,
                    entry.producer,
                    entry.sequence,
                )
                for row, entry in enumerate(acked, self.acknowledged + 1)
            ],
        )
        self._database.executemany(
            "INSERT INTO unsettled VALUES (?,?,?,?)",
            [
                (entry.message_id, entry.outcome, entry.keys, entry.body_hash)
                for entry in entries
                if entry.outcome != ACKNOWLEDGED
            ],
        )
        self.acknowledged += len(acked)

    def index_places(self) -> None:
        """Creates the index; call it after the last `add`."""
        self._database.execute("CREATE INDEX places ON acked (broker, queue_id, queue_offset)")

    def places(self) -> list[Place]:
        """The queues in which anything was acknowledged."""
        rows = self._all("SELECT DISTINCT broker, queue_id FROM acked ORDER BY 1, 2")
        return [(str(broker), int(queue_id)) for broker, queue_id in rows]

    def acked_in(self, place: Place, begin: int, end: int) -> list[AckedRow]:
        """The rows of one queue with offsets in [begin, end), in this order."""
        query = (
            "SELECT * FROM acked WHERE broker = ? AND queue_id = ? "
            "AND queue_offset >= ? AND queue_offset < ? ORDER BY queue_offset, row"
        )
        return [AckedRow(*row) for row in self._all(query, *place, begin, end)]

    # --- faults ---------------------------------------------------------------------------------------

    def mark(self, row: AckedRow, *, missing: bool) -> None:
        """Marks the message as faulty, or as `missing` until the end."""
        self._database.execute("INSERT OR REPLACE INTO faulty VALUES (?,?)", (row.row, missing))

    def marked(self, row: AckedRow) -> bool:
        """Whether the message needs no further check."""
        return bool(self._all("SELECT 1 FROM faulty WHERE row = ?", row.row))

    def missing(self) -> Iterator[AckedRow]:
        """Every message that is still missing; nothing may be marked meanwhile."""
        query = "SELECT * FROM acked WHERE row IN (SELECT row FROM faulty WHERE missing) ORDER BY row"
        yield from (AckedRow(*row) for row in self._database.execute(query))

    def add_extra(self, extras: Sequence[ExtraRow]) -> None:
        """Adds messages of the run that were found where they were not acknowledged."""
        rows = [(e.message_id, e.keys, e.body_hash, e.broker, e.queue_id, e.queue_offset) for e in extras]
        self._database.executemany("INSERT INTO extra VALUES (?,?,?,?,?,?)", rows)

    def extra_names(self) -> Iterator[str]:
        """The message ids of the extra messages, each once."""
        if self._all("SELECT 1 FROM extra LIMIT 1"):
            self._database.execute("CREATE INDEX acked_names ON acked (message_id)")
            self._database.execute("CREATE INDEX unsettled_names ON unsettled (message_id)")
            self._database.execute("CREATE INDEX extra_names ON extra (message_id)")
        for (message_id,) in self._database.execute("SELECT DISTINCT message_id FROM extra"):
            yield message_id

    def acked_as(self, message_id: str) -> list[AckedRow]:
        """The acknowledgements of one message."""
        return [AckedRow(*r) for r in self._all("SELECT * FROM acked WHERE message_id = ?", message_id)]

    def missing_as(self, message_id: str) -> list[AckedRow]:
        """The missing acknowledgements of one message."""
        query = (
            "SELECT * FROM acked WHERE message_id = ? AND row IN (SELECT row FROM faulty WHERE missing) "
            "ORDER BY row"
        )
        return [AckedRow(*row) for row in self._all(query, message_id)]

    def unsettled_as(self, message_id: str) -> list[UnsettledRow]:
        """The sends of one message that were not acknowledged."""
        rows = self._all("SELECT * FROM unsettled WHERE message_id = ?", message_id)
        return [UnsettledRow(*row) for row in rows]

    def extra_as(self, message_id: str) -> list[ExtraRow]:
        """The extra copies of one message, in the order of their places."""
        query = "SELECT * FROM extra WHERE message_id = ? ORDER BY broker, queue_id, queue_offset"
        return [ExtraRow(*row) for row in self._all(query, message_id)]

    # --- look-ups -------------------------------------------------------------------------------------

    def sample(self, rows: Sequence[int]) -> None:
        """Limits `to_look_up` and `key_questions` to these rows of `acked`."""
        self._database.executemany("INSERT INTO sampled VALUES (?)", [(row,) for row in rows])

    def to_look_up(self, *, sampled: bool) -> Iterator[AckedRow]:
        """All messages, or the sampled ones, that are not marked when their turn comes."""
        query = (
            "SELECT * FROM acked WHERE row > ? AND row NOT IN (SELECT row FROM faulty) ORDER BY row LIMIT ?"
        )
        if sampled:
            query = (
                "SELECT acked.* FROM sampled JOIN acked USING (row) "
                "WHERE row > ? AND row NOT IN (SELECT row FROM faulty) ORDER BY row LIMIT ?"
            )
        last = 0
        while page := [AckedRow(*row) for row in self._all(query, last, PAGE_ROWS)]:
            yield from page
            last = page[-1].row

    def key_questions(self, *, sampled: bool) -> Iterator[KeyQuestion]:
        """Each key once; for sampled messages their keys at their store times."""
        self._database.execute("CREATE INDEX keys ON acked (keys, broker, store_timestamp)")
        query = "SELECT DISTINCT keys, broker, 0, 9223372036854775807 FROM acked"
        if sampled:
            query = (
                "SELECT DISTINCT keys, broker, store_timestamp, store_timestamp "
                "FROM sampled JOIN acked USING (row) WHERE row NOT IN (SELECT row FROM faulty)"
            )
        for number, question in enumerate(self._database.execute(query)):
            yield KeyQuestion(number, *question)

    def add_answer(self, question: KeyQuestion, found: Sequence[tuple[int, int, str | None, bytes]]) -> None:
        """Adds a part of an answer: (queue id, queue offset, message id, body hash) of each message."""
        rows = [(question.number, *message) for message in found]
        self._database.executemany("INSERT INTO answered VALUES (?,?,?,?,?)", rows)

    def unanswered(self, question: KeyQuestion) -> list[tuple[AckedRow, bool]]:
        """Expected entries that the answer lacks; True: there is another message in their place."""
        query = """
            SELECT acked.*, EXISTS (SELECT 1 FROM answered WHERE question = :number
                AND answered.queue_id = acked.queue_id AND answered.queue_offset = acked.queue_offset)
            FROM acked
            WHERE keys = :key AND broker = :broker AND store_timestamp BETWEEN :begin AND :end
                AND row NOT IN (SELECT row FROM faulty)
                AND NOT EXISTS (SELECT 1 FROM answered WHERE question = :number
                    AND answered.queue_id = acked.queue_id AND answered.queue_offset = acked.queue_offset
                    AND answered.message_id = acked.message_id AND answered.body_hash = acked.body_hash)
            ORDER BY row"""
        rows = self._database.execute(query, asdict(question))
        return [(AckedRow(*row), bool(present)) for *row, present in rows]

    def forget_answer(self, question: KeyQuestion) -> None:
        """Removes an answer that was compared."""
        self._database.execute("DELETE FROM answered WHERE question = ?", (question.number,))
