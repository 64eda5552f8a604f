"""Arrival delays by carrier: a query over the archive, a table, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

_BODY: Final = "carrier STRING, arr_delay DOUBLE"


class CarrierDelay(NamedTuple):
    """Minutes; a flight that arrived early counts below 0. Cancelled flights have no delay."""

    carrier: str
    flight_count: int
    mean_minutes: float
    p90_minutes: float


def delays_by_carrier(table: DataFrame) -> list[CarrierDelay]:
    """table: the flights topic with its column body. Latest carriers first."""
    flights = table.selectExpr(f"from_json(decode(body, 'UTF-8'), '{_BODY}') AS flight")
    flights.where("flight.arr_delay IS NOT NULL").select("flight.*").createOrReplaceTempView("flights")
    found = table.sparkSession.sql(
        "SELECT carrier, count(*) AS flights, avg(arr_delay) AS mean, percentile(arr_delay, 0.9) AS p90 "
        "FROM flights GROUP BY carrier ORDER BY mean DESC"
    )
    return [CarrierDelay(row.carrier, row.flights, row.mean, row.p90) for row in found.collect()]


def print_delays(delays: list[CarrierDelay]) -> None:
    """A table on standard output."""
    table = Table("carrier", "flights", "mean delay, min", "90 % arrive within, min")
    for delay in delays:
        table.add_row(
            delay.carrier, f"{delay.flight_count:,}", f"{delay.mean_minutes:.1f}", f"{delay.p90_minutes:.0f}"
        )
    Console().print(table)


def draw(delays: list[CarrierDelay], path: Path) -> None:
    """A bar for each carrier's mean, a mark for its 90 %; a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    carriers = [delay.carrier for delay in delays]
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axes.bar(carriers, [delay.mean_minutes for delay in delays], color="#3b6fb6", label="mean")
    axes.plot(carriers, [delay.p90_minutes for delay in delays], "o", color="#d1495b", label="90 % within")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("carrier")
    axes.set_ylabel("arrival delay, minutes")
    axes.set_title("Flights from New York, 2013")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
