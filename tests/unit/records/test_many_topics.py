"""Records of one form and several topics: the columns have the values of each record alone."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from trovemq_proto.records import RecordBatch, RecordState, check_record, encode_record, scan_run
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.index_entries import plain_index_hashes, row_tags_code

TOPICS = (b"topic-1", b"topic-2", b"orders.", b"Bestell", b"B\xc3\xa9stel", b"B\xff\xfestel", b"\x00opic-1")
OTHERS = (b"t", b".", b"..", b"topic-10", b"SCHEDULE_TOPIC_XXXX", b"%SYS%" * 40)
COUNT_MIN = 25  # fewer are read one by one

topics = st.one_of(
    st.lists(st.sampled_from(TOPICS), min_size=COUNT_MIN, max_size=60),
    st.lists(st.sampled_from((*TOPICS[:2], *OTHERS)), min_size=COUNT_MIN, max_size=60),
    st.lists(st.sampled_from(OTHERS[1:3]), min_size=COUNT_MIN, max_size=60),
)
forms = st.sampled_from([("UNIQ_KEY",), ("UNIQ_KEY", "KEYS"), ("UNIQ_KEY", "KEYS", "TAGS"), ("TAGS",), ()])


def of_topic(raw: bytes, number: int, names: tuple[str, ...]) -> bytes:
    """A record of the topic of these bytes, in the form of all with these properties."""
    values = {"UNIQ_KEY": f"{number:06}", "KEYS": f"a{number % 7} b", "TAGS": f"t{number % 3}"}
    properties = {name: values[name] for name in names}
    record = encode_record("x" * len(raw), b"body", properties=properties, queue_id=number % 3)
    fields = read_fields(record, 0, len(record))
    assert fields is not None
    return record[: fields.topic_position] + raw + record[fields.topic_position + len(raw) :]


@given(topics, forms, st.none() | st.integers(0, COUNT_MIN - 1))
@example([b".", b".."] * 20, ("UNIQ_KEY",), None)
def test_each_has_the_entries_of_its_own_topic(
    raw: list[bytes], names: tuple[str, ...], odd: int | None
) -> None:
    records = [
        of_topic(topic, number, (*names, "KEYS") if number == odd else names)
        for number, topic in enumerate(raw)
    ]
    batch = RecordBatch.split(b"".join(records))
    assert batch.topics == [topic.decode("utf-8", "replace") for topic in raw]
    for tags in (False, True):
        entries = batch.index_entries(tags)
        expected = [plain_index_hashes(batch, batch.row(index), tags) for index in range(len(batch))]
        assert entries.hashes.tolist() == [found for own in expected for found in own]
        counts = [len(own) for own in expected]
        assert entries.record_index.tolist() == np.repeat(np.arange(len(batch)), counts).tolist()
    codes = [row_tags_code(batch, batch.row(index)) for index in range(len(batch))]
    assert batch.tags_codes().tolist() == codes


@given(topics, st.none() | st.integers(0, COUNT_MIN - 1))
def test_a_scan_ends_at_the_first_topic_that_is_not_plausible(raw: list[bytes], number: int | None) -> None:
    if number is not None:
        raw[number] = b"topic/1"
    data = memoryview(b"".join(of_topic(topic, index, ("UNIQ_KEY",)) for index, topic in enumerate(raw)))
    batch, end, state = scan_run(
        data, 0, len(data), physical_offset_of_data=None, check_crc=True, bytes_max=len(data)
    )
    position = count = 0
    while True:
        found, size = check_record(data, position, len(data), physical_offset=None, check_crc=True)
        if found is not RecordState.RECORD:
            break
        position, count = position + size, count + 1
    assert (len(batch), end, state) == (count, position, found)
