"""The metrics that a broker exports, read from the tables of docs/statistics.md.

A test keeps those tables equal to the exported metrics, so the page is the one place with all names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "statistics.md"

_ROW: Final = re.compile(r"\| `((?:rocketmq|trovemq)_\w+)` \|([^|]*)\| (.*) \|$")
_NAME_PREFIX: Final = re.compile(r"^(rocketmq|trovemq)_")


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` are those beside `instance`, `job` and the node's own."""

    name: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def kind(self) -> str:
        """counter, histogram or gauge."""
        if self.name.endswith("_total"):
            return "counter"
        return "histogram" if self.meaning.startswith("Histogram") else "gauge"

    @property
    def unit(self) -> str:
        """Of one sample, by Grafana's names."""
        if self.name.endswith("timestamp_seconds") or self.name.endswith("time_seconds"):
            return "dateTimeFromNow"
        if re.search(r"\bms\b", self.meaning):
            return "ms"
        if self.name.endswith("_percent"):
            return "percent"
        if "seconds" in self.name:
            return "s"
        in_bytes = re.search(r"(_bytes|throughput_(in|out))(_|$)", self.name) or re.match(
            r"(Bytes|Their bytes|Histogram.*in bytes)", self.meaning
        )
        return "bytes" if in_bytes else "short"

    @property
    def title(self) -> str:
        """The name in words."""
        words = _NAME_PREFIX.sub("", self.name).removesuffix("_total").replace("_", " ")
        return words[0].upper() + words[1:]


def read_metrics(page: Path = PAGE) -> list[Metric]:
    """In the order of the page."""
    found = []
    for line in page.read_text(encoding="utf-8").splitlines():
        row = _ROW.match(line)
        if row is not None:
            labels = tuple(label.strip(" `") for label in row[2].split(",") if label.strip())
            found.append(Metric(row[1], labels, row[3].replace("`", "")))
    return found
