"""Logs damage that was found by opening a store or by reading it: each place once, up to a bound."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.log.segments import DIRECTORY

LINES_MAX: Final = 32


def log_recovery(logger: Any, store: MessageStore) -> None:
    """Logs the findings of store.recovery as warnings: of each kind LINES_MAX lines; of damages and gaps the
    count of the others, too. From then on damage that readers find is logged with the same bound."""
    report, file_size = store.recovery, store.settings.commit_log_file_size

    def log_damage(event: str, physical_offset: PhysicalOffset, size: int, state: str) -> None:
        start = physical_offset // file_size * file_size
        logger.warning(
            event,
            file=f"{DIRECTORY}/{start:020}",
            offset=physical_offset - start,
            physical_offset=physical_offset,
            bytes=size,
            state=state,
        )

    met = count(1)

    def log_met(physical_offset: PhysicalOffset, size: int, state: str) -> None:
        if next(met) <= LINES_MAX:
            log_damage("store.damage_met", physical_offset, size, state)

    def log_met_unit(topic: str, queue_id: QueueId, queue_offset: QueueOffset) -> None:
        if next(met) <= LINES_MAX:
            logger.warning("store.unit_unreadable", topic=topic, queue_id=queue_id, queue_offset=queue_offset)

    store.damage.on_new, store.damage.on_new_unit = log_met, log_met_unit
    for damage in report.damages[:LINES_MAX]:
        at, end = damage.physical_offset, damage.end
        log_damage("store.damage", at, end - at, damage.state.value)
    for gap in report.gaps[:LINES_MAX]:
        logger.warning(
            "store.gap", topic=gap.topic, queue_id=gap.queue_id, offset=gap.offset, messages=gap.count
        )
    for run in report.unfinished[:LINES_MAX]:
        logger.warning(
            "store.transaction_unfinished",
            transaction=run.transaction_id,
            physical_offset=run.physical_offset,
            records=run.seen,
            of=run.count,
        )
    if (cut := report.cut_transaction) is not None:
        logger.info("store.transaction_cut", transaction=cut.transaction_id, records=cut.seen, of=cut.count)
    for reason in report.second_copies:
        logger.warning("store.second_copy_read", reason=reason)
    for topic, lowered in report.lowered_offsets[:LINES_MAX]:
        logger.warning("store.offsets_lowered", topic=topic, count=lowered)
    for event, found in (("store.damages_more", report.damages), ("store.gaps_more", report.gaps)):
        if len(found) > LINES_MAX:
            logger.warning(event, count=len(found) - LINES_MAX)
