"""The demo with the first FLIGHTS flights: `python -m tests.integration.small_demo`, arguments as there.

All 336,776 take a minute of processor time to load, read back and count: `make soak` does that.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import islice
from typing import Final

from deploy.demo import flights
from deploy.demo.__main__ import main

FLIGHTS: Final = 24_000


def shrink() -> None:
    """For this process, the data set ends after FLIGHTS rows."""
    rows = flights.flight_rows
    flights.flight_rows = lambda: islice(rows(), FLIGHTS)
    lengths = Counter(message.queue_id for message in flights.flight_messages())
    for name, value in (
        ("FLIGHT_COUNT", FLIGHTS),
        ("QUEUE_LENGTHS", tuple(lengths[queue] for queue in range(flights.QUEUE_COUNT))),
    ):
        setattr(flights, name, value)


if __name__ == "__main__":
    shrink()
    sys.exit(main())
