"""Says on standard error which parts an answer may lack, once for all calls of a verb: those of brokers that
did not answer, and the newest messages, where a replica has answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trovemq.cli.output import Output
from trovemq.models.replica import ReplicaLag

TEXTS: Final = {
    "missing": "not all brokers answered, {0} is missing: see trovemq doctor",
    "pending": "not done on {0}, which did not answer: do it again when it is back",
}
LATER: Final = "not done on {0} yet, which makes the change when it is back"
"""Where the cluster's configuration has an owner."""


class Away:
    """The brokers that did not answer: `missing` of reads, `pending` of changes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._known: dict[str, set[str]] = {kind: set() for kind in TEXTS}
        self._is_said = False
        """Whether a remark says that a replica has answered."""

    def note(self, answer: object) -> None:
        """Adds the brokers that the answer of a call names, and the replica's lag that it has."""
        if isinstance(lag := getattr(answer, "replica", None), ReplicaLag):
            self._note_replica(lag)
        for kind in TEXTS:
            names = getattr(answer, kind, ())
            if isinstance(names, tuple):
                self.add(kind, names, getattr(answer, "later", ()))

    def _note_replica(self, lag: ReplicaLag) -> None:
        self._output.note(replica={"lagBytes": lag.lag_bytes, "lagMs": lag.lag_ms})
        if not self._is_said:
            self._is_said = True
            lag_text = "not known yet" if lag.lag_ms is None else f"{lag.lag_ms} ms"
            self._output.remark(f"from a replica, whose lag is {lag_text}")

    def clear(self) -> None:
        """Forgets them, for an answer that is shown again."""
        for known in self._known.values():
            known.clear()

    def names(self, kind: str) -> list[str]:
        """The brokers of one kind so far."""
        return sorted(self._known[kind])

    def add(self, kind: str, names: Iterable[str], later: Sequence[str] = ()) -> None:
        """Adds brokers of one kind; `later`: those that make the change when they are back."""
        known = self._known[kind]
        new = sorted(set(names) - known)
        if new:
            known.update(new)
            self._output.note(**{kind: sorted(known)})
            if kind == "missing":
                self._output.note(complete=False)
            for text, some in (
                (TEXTS[kind], [name for name in new if name not in later]),
                (LATER, [name for name in new if name in later]),
            ):
                if some:
                    self._output.remark(text.format(", ".join(some)))
