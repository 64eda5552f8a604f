"""The files of records that were cut from the end of a node's log."""

from __future__ import annotations

from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replication.frames import Node
from trovemq_broker.replication.status import CutFile, CutFiles
from trovemq_daemon.logging import get_logger
from trovemq_proto.records.scan import scan_run
from trovemq_store.replica import cut_records


def cut_files(node: OpenNode, name: Node) -> CutFiles:
    """Oldest first; blocks. A damaged one is logged. StorageError."""
    found = []
    for path in cut_records.cut_files(node.files):
        try:
            cut = cut_records.decoded(node.files.read_bytes(path))
        except ValueError as error:
            get_logger().warning("replica.cut_file_damaged", path=path, reason=str(error))
            continue
        records, _, _ = scan_run(
            memoryview(cut.data),
            0,
            len(cut.data),
            physical_offset_of_data=cut.kept_from,
            check_crc=False,
            bytes_max=len(cut.data) + 1,
        )
        found.append(CutFile(path, cut.epoch, cut.cut_at, cut.kept_from, cut.end, len(records)))
    return CutFiles(name, tuple(found), node.file.state.cut_bytes_dropped)
