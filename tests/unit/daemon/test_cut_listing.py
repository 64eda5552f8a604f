"""The records of a cut, as operators list and read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.followers import Leader
from trovemq_broker.daemon.replica import cut_listing
from trovemq_broker.daemon.replica.cut_listing import cut_files, cut_part
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replication.frames import Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.replica.cut_records import keep_records


def cut_node() -> tuple[OpenNode, Leader, PhysicalOffset]:
    """A node that keeps the records of its log from the fifth on, over several segments."""
    leader = Leader()
    while leader.store.segment_count < 3:
        leader.send("orders", 0, 3, size=900)
    begin = PhysicalOffset(leader.record_ends[4])
    keep_records(leader.files, leader.store.log, begin, 7)
    state = SimpleNamespace(cut_bytes_dropped=0)
    node = SimpleNamespace(files=leader.files, store=leader.store, file=SimpleNamespace(state=state))
    return cast("OpenNode", node), leader, begin


def test_a_cut_of_several_segments_was_listed_with_the_first_alone() -> None:
    node, leader, begin = cut_node()
    (found,) = cut_files(node, "a").files
    assert (found.offset, found.end) == (begin, leader.store.end_offset)
    assert found.records == len(leader.record_ends) - 5


def test_all_records_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_listing, "PART_BYTES", 5_000)
    node, leader, begin = cut_node()
    (file,) = cut_files(node, "a").files
    offset, read, parts = Offset(0), bytearray(), 0
    while (part := cut_part(node, file.path, offset)).data:
        assert len(part.data) <= 5_000
        assert part.offset >= max(offset, begin)
        assert part.data == bytes(leader.store.log.read(part.offset, len(part.data)))
        read += part.data
        offset, parts = part.next, parts + 1
    assert parts > 3
    sizes = [end - start for start, end in zip(leader.record_ends[4:], leader.record_ends[5:], strict=False)]
    assert read.count(b"." * 900) == len(sizes)


def test_a_path_that_is_no_file_of_cut_records_is_refused() -> None:
    node, leader, _ = cut_node()
    (file,) = cut_files(node, "a").files
    for path in ("trovemq/replica.json", "../x", "trovemq/cut/../state.json", ""):
        with pytest.raises(TroveError) as refused:
            cut_part(node, path, Offset(0))
        assert refused.value.spec is errors.REQUEST_ILLEGAL
    content = bytearray(leader.files.read_bytes(file.path))
    content[-1] ^= 1
    leader.files.write_atomic(file.path, bytes(content))
    with pytest.raises(TroveError) as damaged:
        cut_part(node, file.path, Offset(0))
    assert damaged.value.spec is errors.REQUEST_ILLEGAL
