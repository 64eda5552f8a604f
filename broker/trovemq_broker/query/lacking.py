"""Notes in answers that may lack messages that were removed early, to free the disk."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import replace

from trovemq_broker.query.pages import PageT
from trovemq_store.engine.message_store import MessageStore


def lacking_note(store: MessageStore, topic: str, begin_ms: int) -> str:
    """A sentence if an answer about this topic ("": all topics) from this store time on may lack messages,
    else an empty text. A topic whose queues all still have their first message lacks nothing."""
    removed = store.early_removal.removed
    if not removed or begin_ms > removed.newest_ms:
        return ""
    if topic and all(queue.min_offset == 0 for queue in store.consume_queues.queues(topic)):
        return ""
    return str(removed)


def with_lacking_note(
    store: MessageStore, page: PageT, topic: str, begin_ms: int, notes: MutableSequence[str]
) -> PageT:
    """The page. If it may lack messages that were removed early, it is not complete, and `notes` gets a
    note."""
    note = lacking_note(store, topic, begin_ms) if page.complete else ""
    if not note:
        return page
    notes.append(note)
    return replace(page, complete=False)
