"""Whatever a broker answers, and in whatever order: every record is returned once, in order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from trovemq._consume.fetch_plan import NO_END, Fetch, FetchPlan
from trovemq.fetched import FetchedBatch
from trovemq_proto.records import encode_record


@dataclass
class Queue:
    """A broker's queue: sizes[i] is the body size at offset i, None where the offset is blank."""

    sizes: list[int | None]

    def answer(self, fetch: Fetch, bytes_max: int, scan_max: int) -> FetchedBatch:
        """As the broker does: messages_max counts records, blanks are skipped, one record at least."""
        records: list[bytes] = []
        offset = fetch.start
        stop = min(len(self.sizes), fetch.start + scan_max)
        while offset < stop:
            size = self.sizes[offset]
            if size is not None:
                record = encode_record("t", bytes(size), queue_offset=offset)
                full = fetch.messages_max and len(records) >= fetch.messages_max
                if full or (records and sum(map(len, records)) + len(record) > bytes_max):
                    break
                records.append(record)
            offset += 1
        return FetchedBatch(b"".join(records), offset, 0, len(self.sizes))


@given(
    sizes=st.lists(st.one_of(st.none(), st.integers(0, 400)), max_size=60),
    start=st.integers(0, 60),
    bytes_max=st.integers(1, 4_000),
    fetches_max=st.integers(1, 5),
    scan_max=st.integers(1, 60),
    foretell=st.booleans(),
    wanted=st.one_of(st.none(), st.integers(0, 20)),
    messages_max=st.integers(0, 9),
    seed=st.integers(0, 1 << 16),
)
def test_nothing_missing_nothing_twice(
    sizes: list[int | None],
    start: int,
    bytes_max: int,
    fetches_max: int,
    scan_max: int,
    foretell: bool,
    wanted: int | None,
    messages_max: int,
    seed: int,
) -> None:
    chance = Random(seed)
    start %= len(sizes) + 1
    end = NO_END if wanted is None else start + wanted
    queue = Queue(sizes)
    plan = FetchPlan(
        start,
        bytes_max=bytes_max,
        fetches_max=fetches_max,
        foretell=foretell,
        end=end,
        messages_max=messages_max,
    )
    in_flight: list[Fetch] = []
    found: list[int] = []
    for _ in range(1_000):
        while start < end and (fetch := plan.next_to_send()) is not None:
            in_flight.append(fetch)
            assert not messages_max or 0 < fetch.messages_max <= messages_max
            assert fetch.start < end
        if not in_flight:
            break
        if chance.random() < 0.05:
            plan.restart()
            in_flight.clear()
            continue
        fetch = in_flight.pop(chance.randrange(len(in_flight)))
        plan.answered(fetch.fetch_id, queue.answer(fetch, bytes_max, scan_max))
        ended = False
        while (batch := plan.next_to_hand_out()) is not None:
            found += batch.offsets.tolist() if len(batch) else []
            ended = ended or batch.next_offset >= min(len(sizes), end)
        if ended:
            break
    assert found == [offset for offset in range(start, min(len(sizes), end)) if sizes[offset] is not None]


def test_several_fetches_are_in_flight_where_records_are_alike() -> None:
    queue = Queue([100] * 1_000)
    plan = FetchPlan(0, bytes_max=5_000, fetches_max=3, foretell=True)
    first = plan.next_to_send()
    assert first is not None
    assert plan.next_to_send() is None
    plan.answered(first.fetch_id, queue.answer(first, 5_000, 1_000))
    assert plan.next_to_hand_out() is not None
    fetches = [plan.next_to_send() for _ in range(4)]
    assert [fetch is not None for fetch in fetches] == [True, True, True, False]
    for fetch in fetches[:3]:
        assert fetch is not None
        answer = queue.answer(fetch, 5_000, 1_000)
        assert answer.next_offset == fetch.end


def test_fetches_end_at_the_given_offset_and_ask_for_no_more() -> None:
    queue = Queue([100] * 1_000)
    plan = FetchPlan(0, bytes_max=50_000, fetches_max=3, foretell=True, end=260, messages_max=25)
    found: list[int] = []
    asked: list[tuple[int, int]] = []
    while len(found) < 260:
        fetches = [fetch for _ in range(3) if (fetch := plan.next_to_send()) is not None]
        assert fetches
        for fetch in fetches:
            asked.append((fetch.start, fetch.messages_max))
            plan.answered(fetch.fetch_id, queue.answer(fetch, 50_000, 1_000))
        while (batch := plan.next_to_hand_out()) is not None:
            found += batch.offsets.tolist()
    assert found == list(range(260))
    assert all(start + count <= 260 and 0 < count <= 25 for start, count in asked)
    assert len(asked) <= 13, "a fetch asks for as many as it may"
