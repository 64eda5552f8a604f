"""Searches of the flights that left New York in 2013 equal pandas' results of the file.

`make soak` searches the whole year, `make test` its first weeks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import pandas as pd
import pytest

from deploy.demo.flights import FLIGHT_COUNT, FlightMessage, flight_messages, flight_rows
from tests.support.engine import BORN_HOST, NOW_MS, flush
from tests.support.trials import SOAK
from trovemq_broker.query.search.conditions import TIME_MAX, AllOf, AnyOf, Condition, Has, SearchQuery
from trovemq_broker.query.search.search import search_pages
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.encode import encode_record
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY
from trovemq_store.settings import StoreSettings

pytestmark = pytest.mark.untraced

ROWS: Final = FLIGHT_COUNT if SOAK else 40_000
QUERIES: Final = 500 if SOAK else 200
BATCH: Final = 500
"""Rows a millisecond."""
INDEXED: Final = ROWS - 3_000
"""Later messages are not in the trees yet."""
SETTINGS = StoreSettings(
    commit_log_file_size=1 << 24,
    consume_queue_file_size=2_000_000,
    flush_mode="async",
    store_host="10.0.0.1:8081",
    message_index_enable=False,
    append_property_crc=False,
    tree_index_enable=True,
    spare_segment_enable=False,
)


def encoded(message: FlightMessage) -> bytes:
    properties = {
        "UNIQ_KEY": message.message_id,
        "KEYS": " ".join(message.keys),
        "TAGS": message.tag,
        **message.properties,
    }
    return encode_record("flights", message.body, queue_id=0, properties=properties, born_timestamp=NOW_MS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """The rows in the file's order; BATCH of them at each millisecond."""
    opened = MessageStore.open(RealFileSystem(tmp_path_factory.mktemp("flights")), SETTINGS, NOW_MS)
    opened.topics.create("flights", 1, options={"indexed_properties": "origin"})
    messages = islice(flight_messages(), ROWS)
    batch_count = -(-ROWS // BATCH)
    for number in range(batch_count):
        if number == INDEXED // BATCH:
            flush(opened)
            opened.catch_up_trees()
        data = bytearray(b"".join(map(encoded, islice(messages, BATCH))))
        batch = RecordBatch.split(data)
        opened.append(batch, (("flights", 0, len(batch)),), EpochMs(NOW_MS + number), born_host=BORN_HOST)
        opened.dispatch()
    yield opened
    opened.close(NOW_MS + batch_count)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    table = pd.DataFrame(islice(flight_rows(), ROWS))
    assert len(table) == ROWS
    table["number"] = range(len(table))
    table["id"] = [f"flight-{number:06}" for number in table["number"]]
    table["stored"] = NOW_MS + table["number"] // BATCH
    table["flight_key"] = table["carrier"] + table["flight"]
    table["tail"] = table["tailnum"].where(table["tailnum"] != "NA", "")
    texts = ["tail", "flight_key", "carrier", "origin", "id"]
    return table[["stored", *texts]].astype(dict.fromkeys(texts, "string[pyarrow]"))


class Question:
    """A search and pandas' result of it."""

    def __init__(self, table: pd.DataFrame, source: random.Random) -> None:
        row = table.iloc[source.randrange(len(table))]
        other = table.iloc[source.randrange(len(table))]
        tail, prefix = str(row["tail"]) or "N1", source.choice(["N14", "N1", "N9", "N", "UA1", "B6", "Z"])
        parts: list[tuple[Condition, Callable[[], pd.Series[bool]]]] = [
            (_has(KEY, tail), lambda: (table["tail"] == tail) | (table["flight_key"] == tail)),
            (
                _has(KEY, str(other["flight_key"])),
                lambda: table["flight_key"] == other["flight_key"],
            ),
            (
                _has(KEY, prefix, is_prefix=True),
                lambda: table["tail"].str.startswith(prefix) | table["flight_key"].str.startswith(prefix),
            ),
            (_has(TAG, str(row["carrier"])), lambda: table["carrier"] == row["carrier"]),
            (_has(PROPERTY, "JFK", name="origin"), lambda: table["origin"] == "JFK"),
            (_has(UNIQUE_KEY, str(row["id"])), lambda: table["id"] == row["id"]),
            (
                _has(UNIQUE_KEY, str(row["id"])[:-2], is_prefix=True),
                lambda: table["id"].str.startswith(str(row["id"])[:-2]),
            ),
        ]
        chosen = source.sample(parts, source.choice([1, 1, 2, 2, 3]))
        any_of = source.random() < 0.3
        met = chosen[0][1]()
        for _, column in chosen[1:]:
            met = met | column() if any_of else met & column()
        conditions = tuple(condition for condition, _ in chosen)
        begin, end = EpochMs(0), TIME_MAX
        if source.random() < 0.5:
            begin, end = sorted(
                EpochMs(int(table["stored"].iloc[source.randrange(len(table))])) for _ in range(2)
            )
            met &= (table["stored"] >= begin) & (table["stored"] <= end)
        newest_first = source.random() < 0.5
        where = AnyOf(conditions) if any_of else AllOf(conditions)
        self.query = SearchQuery("flights", where, begin, end, newest_first)
        ids = table["id"][met].tolist()
        self.ids: list[str] = ids[::-1] if newest_first else ids


def _has(kind: int, value: str, *, is_prefix: bool = False, name: str = "") -> Has:
    return Has(kind, value.encode(), is_prefix, name)


def test_searches_are_equal_to_pandas(store: MessageStore, table: pd.DataFrame) -> None:
    source = random.Random(7)
    found_some = 0
    for number in range(QUERIES):
        question = Question(table, source)
        messages_max = source.choice([10, 500])
        found: list[str] = []
        complete = False
        for page in search_pages(store, question.query, messages_max=messages_max):
            batch = RecordBatch.split(b"".join(page.records)) if page.records else None
            found += [str(one) for one in batch.property_values("UNIQ_KEY")] if batch is not None else []
            complete = page.complete
        assert found == question.ids[:messages_max], (number, question.query)
        assert complete or len(found) == messages_max, (number, question.query)
        found_some += bool(found)
    assert found_some > QUERIES // 2


def test_tail_numbers_that_begin_with_n14_of_one_carrier(store: MessageStore, table: pd.DataFrame) -> None:
    where = AllOf((_has(KEY, "N14", is_prefix=True), _has(TAG, "EV")))
    wanted = table["id"][table["tail"].str.startswith("N14") & (table["carrier"] == "EV")].tolist()
    assert len(wanted) > 100
    pages = list(search_pages(store, SearchQuery("flights", where, newest_first=False), messages_max=ROWS))
    found = [
        str(one)
        for page in pages
        if page.records
        for one in RecordBatch.split(b"".join(page.records)).property_values("UNIQ_KEY")
    ]
    assert found == wanted
    assert pages[-1].complete
