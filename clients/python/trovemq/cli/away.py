"""Says on standard error which brokers are not in an answer, each once for all calls of a verb."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trovemq.cli.output import Output

TEXTS: Final = {
    "missing": "not all brokers answered, {0} is missing: see trovemq doctor",
    "pending": "not done on {0}, which did not answer: do it again when it is back",
}


class Away:
    """The brokers that did not answer: `missing` of reads, `pending` of changes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._known: dict[str, set[str]] = {kind: set() for kind in TEXTS}

    def note(self, answer: object) -> None:
        """Adds the brokers that the answer of a call names."""
        for kind in TEXTS:
            names = getattr(answer, kind, ())
            if isinstance(names, tuple):
                self.add(kind, names)

    def clear(self) -> None:
        """Forgets them, for an answer that is shown again."""
        for known in self._known.values():
            known.clear()

    def names(self, kind: str) -> list[str]:
        """The brokers of one kind so far."""
        return sorted(self._known[kind])

    def add(self, kind: str, names: Iterable[str]) -> None:
        """Adds brokers of one kind."""
        known = self._known[kind]
        new = sorted(set(names) - known)
        if new:
            known.update(new)
            self._output.note(**{kind: sorted(known)})
            self._output.remark(TEXTS[kind].format(", ".join(new)))
