"""The files of records that were cut from the end of a node's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replication.frames import Node, Offset
from trovemq_broker.replication.status import CutFile, CutFiles, CutPart
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.scan import scan_run
from trovemq_store.replica import cut_records
from trovemq_store.replica.cut_records import CutRecords

PART_BYTES: Final = 1 << 20


def cut_files(node: OpenNode, name: Node) -> CutFiles:
    """Oldest first; blocks. A damaged one is logged. StorageError."""
    found = []
    for path in cut_records.cut_files(node.files):
        try:
            cut = cut_records.decoded(node.files.read_bytes(path))
        except ValueError as error:
            get_logger().warning("replica.cut_file_damaged", path=path, reason=str(error))
            continue
        count = sum(count for _, _, count in _runs(node, cut, cut.kept_from))
        found.append(CutFile(path, cut.epoch, cut.cut_at, cut.kept_from, cut.end, count))
    return CutFiles(name, tuple(found), node.file.state.cut_bytes_dropped)


def cut_part(node: OpenNode, path: str, offset: Offset) -> CutPart:
    """The records of that file from `offset` on, about PART_BYTES of them; blocks. TroveError
    REQUEST_ILLEGAL; StorageError."""
    if path not in cut_records.cut_files(node.files):
        raise TroveError(errors.REQUEST_ILLEGAL, f"there is no file {path} of cut records", field="path")
    try:
        cut = cut_records.decoded(node.files.read_bytes(path))
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{path}: {error}", field="path") from error
    for begin, end, _ in _runs(node, cut, max(offset, cut.kept_from)):
        return CutPart(cut.data[begin - cut.kept_from : end - cut.kept_from], begin, end)
    return CutPart(b"", cut.end, cut.end)


def _runs(node: OpenNode, cut: CutRecords, begin: Offset) -> Iterator[tuple[Offset, Offset, int]]:
    """The runs of good records from `begin` on: where each begins and ends, and how many it has. The rest
    of a segment after a blank, or after damage, is skipped."""
    segment_size = node.store.settings.commit_log_file_size
    while begin < cut.end:
        records, end, _ = scan_run(
            memoryview(cut.data),
            begin - cut.kept_from,
            len(cut.data),
            physical_offset_of_data=cut.kept_from,
            check_crc=True,
            bytes_max=PART_BYTES,
        )
        if len(records):
            yield begin, Offset(cut.kept_from + end), len(records)
            begin = Offset(cut.kept_from + end)
        else:
            begin = Offset((begin // segment_size + 1) * segment_size)
