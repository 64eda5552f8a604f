"""The demo's messages against pandas' results from the same file.

`make soak` takes every row, `make test` the first ones; the counts by pandas alone are of the whole file.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections import Counter
from itertools import islice

import pandas as pd
import pytest

from deploy.demo import flights
from deploy.demo.flights import FlightMessage
from tests.support.trials import SOAK

ROWS = flights.FLIGHT_COUNT if SOAK else 40_000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(flights.data_file())


@pytest.fixture(scope="module")
def messages() -> list[FlightMessage]:
    return list(islice(flights.flight_messages(), ROWS))


@pytest.mark.slow
def test_one_message_a_row_with_its_values(table: pd.DataFrame, messages: list[FlightMessage]) -> None:
    assert len(table) == flights.FLIGHT_COUNT
    assert len(messages) == ROWS
    assert all(json.loads(message.body) for message in messages)
    for row_number in [0, ROWS - 1, *random.Random(1).sample(range(ROWS), 500)]:
        body = json.loads(messages[row_number].body)
        row = table.iloc[row_number].to_dict()
        assert list(body) == list(row)
        for name, value in row.items():
            missing = isinstance(value, float) and math.isnan(value)
            assert body[name] == (None if missing else value), (row_number, name)
        assert messages[row_number].properties == {"origin": row["origin"]}


@pytest.mark.slow
def test_counts_by_tag_key_and_queue_are_those_of_pandas(
    table: pd.DataFrame, messages: list[FlightMessage]
) -> None:
    flight_keys = table["carrier"] + table["flight"].astype(str)
    queues = (
        table["tailnum"].fillna(flight_keys).map(lambda key: zlib.crc32(key.encode()) % flights.QUEUE_COUNT)
    )
    lengths = queues.value_counts().sort_index().tolist()
    assert [message.queue_id for message in messages] == queues.tolist()[:ROWS]
    table, flight_keys = table.head(ROWS), flight_keys.head(ROWS)
    assert Counter(message.tag for message in messages) == table["carrier"].value_counts().to_dict()
    expected = Counter(table["tailnum"].dropna()) + Counter(flight_keys)
    assert Counter(key for message in messages for key in message.keys) == expected
    assert tuple(lengths) == flights.QUEUE_LENGTHS


@pytest.mark.slow
def test_rows_of_one_tail_number_stay_on_one_queue_and_na_is_not_a_key(messages: list[FlightMessage]) -> None:
    queue_of_key: dict[str, int] = {}
    for message in messages:
        assert "NA" not in message.keys
        if len(message.keys) == 2:
            assert queue_of_key.setdefault(message.keys[0], message.queue_id) == message.queue_id


def test_a_unique_key_names_its_row() -> None:
    for row_number in (0, 42, flights.FLIGHT_COUNT - 1):
        assert flights.row_number_of(flights.message_id(row_number)) == row_number


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "flight-",
        "flight-1",
        "flight-336776",
        "flight-00000x",
        "000001",
        "flight-\u0660\u0660\u0660\u0660\u0660\u0661",
    ],
)
def test_other_unique_keys_name_no_row(key: str | None) -> None:
    assert flights.row_number_of(key) is None
