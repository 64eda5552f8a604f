"""Families of many samples, as rows: their text takes a small part of the time that samples would take.

A row has the values of its labels and its number. The text of labels is kept under all of their values, and
made of nothing else: it is never an older one or another row's. Numbers are never kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

LABEL_TEXTS_MAX: Final = 16_384
PLAIN_BELOW: Final = 1_000_000
"""Smaller numbers are written as Python does, larger ones with an exponent."""
LE: Final = "le"
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Values = tuple[str, ...]


class LabelTexts:
    """The text between the braces, for labels of the same names; those of `constant` have one value each."""

    def __init__(self, constant: Mapping[str, str], names: Values) -> None:
        self.constant: Final = constant
        self.names: Final = names
        self._order: Final = sorted((*constant, *names))
        assert self._order[-1] > LE, "a label follows that of a bucket"
        self._texts: dict[Values, tuple[str, str]] = {}

    def of(self, values: Values) -> tuple[str, str]:
        """The labels before `le`, with a comma after each, and those that follow it."""
        found = self._texts.get(values)
        if found is None:
            if len(self._texts) >= LABEL_TEXTS_MAX:
                self._texts.clear()
            found = self._texts[values] = self._made(values)
        return found

    def by_name(self, values: Values) -> dict[str, str]:
        """The labels as a mapping."""
        return {**self.constant, **dict(zip(self.names, values, strict=True))}

    def _made(self, values: Values) -> tuple[str, str]:
        labels = self.by_name(values)
        texts = [(name, f'{name}="{escaped(labels[name])}"') for name in self._order]
        before = "".join([f"{text}," for name, text in texts if name < LE])
        return before, ",".join([text for name, text in texts if name > LE])


class SampleTable(Metric, ABC):
    """A family whose samples are rows."""

    def __init__(self, name: str, what: str, kind: str, labels: LabelTexts) -> None:
        super().__init__(name, what, kind)
        self._labels: Final = labels

    @abstractmethod
    def lines(self) -> str:
        """The text of all samples."""

    @abstractmethod
    def _as_samples(self) -> list[Sample]: ...

    @property
    def samples(self) -> list[Sample]:
        """The samples as objects of prometheus_client, for readers of single samples."""
        return self._as_samples()

    @samples.setter
    def samples(self, given: list[Sample]) -> None:
        assert not given, "samples are added as rows"


class NumberTable(SampleTable):
    """Counters or gauges."""

    def __init__(self, name: str, what: str, kind: str, labels: LabelTexts) -> None:
        super().__init__(name, what, kind, labels)
        self._rows: list[tuple[Values, float]] = []
        self._name: Final = f"{name}_total" if kind == "counter" else name

    def add(self, values: Values, number: float) -> None:
        """One more sample."""
        self._rows.append((values, number))

    def lines(self) -> str:
        """The text of all samples."""
        name, of, lines = self._name, self._labels.of, []
        for values, number in self._rows:
            before, after = of(values)
            lines.append(f"{name}{{{before}{after}}} {number_text(number)}\n")
        return "".join(lines)

    def _as_samples(self) -> list[Sample]:
        by_name = self._labels.by_name
        return [Sample(self._name, by_name(values), number) for values, number in self._rows]


class HistogramTable(SampleTable):
    """Histograms with the same bounds."""

    def __init__(self, name: str, what: str, labels: LabelTexts, bounds: Sequence[float]) -> None:
        super().__init__(name, what, "histogram", labels)
        self._bounds: Final = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._rows: list[tuple[Values, list[int], float]] = []

    def add(self, values: Values, counts: Sequence[int], total: float) -> None:
        """One more; `counts` of each bucket alone."""
        self._rows.append((values, list(accumulate(counts)), total))

    def lines(self) -> str:
        """The text of all samples."""
        lines: list[str] = []
        heads: list[str] = []
        name, heads_of = self.name, None
        for values, counts, total in self._rows:
            before, after = self._labels.of(values)
            if before != heads_of:
                heads = [f'{name}_bucket{{{before}{LE}="{bound}",' for bound in self._bounds]
                heads_of = before
            texts = [number_text(count) for count in counts]
            lines += [f"{head}{after}}} {text}\n" for head, text in zip(heads, texts, strict=True)]
            lines.append(f"{name}_count{{{before}{after}}} {texts[-1]}\n")
            lines.append(f"{name}_sum{{{before}{after}}} {number_text(total)}\n")
        return "".join(lines)

    def _as_samples(self) -> list[Sample]:
        found = []
        for values, counts, total in self._rows:
            labels = self._labels.by_name(values)
            for bound, count in zip(self._bounds, counts, strict=True):
                found.append(Sample(f"{self.name}_bucket", {**labels, LE: bound}, count))
            found.append(Sample(f"{self.name}_count", labels, counts[-1]))
            found.append(Sample(f"{self.name}_sum", labels, total))
        return found


def number_text(number: float) -> str:
    """The value in Prometheus' text format."""
    if 0 <= number < PLAIN_BELOW:
        return repr(float(number))
    return str(floatToGoString(number))  # type: ignore[no-untyped-call]


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    return value.translate(_ESCAPED)
