"""Pages of bounded work. An answer by key or by conditions is returned page by page, each of which continues
where the one before stopped, until the answer is complete, long enough, or has used its share of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_store.engine.message_store import MessageStore

# Work is counted in steps along a chain, or entries of a tree: about a microsecond each. No benchmark has a
# case for these weights.
WORK_MAX: Final = 5_000
REQUEST_WORK_MAX: Final = 400 * WORK_MAX
"""The work of all pages of one answer; beyond it the answer is incomplete, and its cursor continues."""
WORK_OF_SCANNED_RECORD: Final = 2
_SCANNED_BYTES_OF_WORK: Final = 64
"""A scan is charged this much per record, and one unit for each of these bytes."""


@dataclass(slots=True)
class Work:
    """The limits of a page's work, and the work done. Work is charged after it is done, so that every page
    makes progress."""

    remaining: int = WORK_MAX
    done: int = 0

    def charge(self, work: int) -> None:
        self.done += work
        self.remaining -= work

    def charge_scan(self, record_count: int, byte_count: int) -> None:
        self.charge(WORK_OF_SCANNED_RECORD * record_count + byte_count // _SCANNED_BYTES_OF_WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPage:
    """One page. Record i has queue_offsets[i] and physical_offsets[i]; records are views of the log.

    complete: no further record answers; otherwise `cursor` continues, even after an empty page that used its
    share of work.
    """

    records: list[memoryview]
    queue_offsets: list[QueueOffset]
    physical_offsets: list[PhysicalOffset]
    complete: bool
    cursor: str
    notes: tuple[str, ...] = ()
    work: int = 0
    """The page's cost, in units of about a microsecond."""
    last: bool = False
    """The answer ends with this page, complete or not."""


PageT = TypeVar("PageT", bound=AnswerPage)


def page_size(store: MessageStore, messages_max: int) -> int:
    """How many messages a page may have (0: maxMsgsNumBatch, which is also the most). Raises TroveError
    REQUEST_ILLEGAL."""
    if messages_max < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{messages_max} messages", field="messages_max")
    limit = store.settings.query_messages_max
    return min(messages_max or limit, limit)


def answer_pages(
    page_at: Callable[[int, str], PageT], messages_max: int, cursor: str, work_max: int
) -> Iterator[PageT]:
    """Yields pages until the answer is complete, has messages_max messages, or used work_max. page_at returns
    the page of at most that many messages from a cursor on. The caller may do other work between two
    pages."""
    while True:
        page = page_at(messages_max, cursor)
        messages_max -= len(page.records)
        work_max -= page.work
        if page.complete or messages_max <= 0 or work_max <= 0:
            yield replace(page, last=True)
            return
        yield page
        cursor = page.cursor
