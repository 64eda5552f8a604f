"""The answers of all brokers to one call, and the names of those that gave none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")


class BrokerAnswers(list[_Answer]):
    """The answers of the brokers, as a list: a broker that is away hides no other.

    Attributes:
        missing: Of a read: brokers that did not answer, or that the nameserver has lost. The list
            lacks things that only they have.
        pending: Of a change: such brokers. It is not made there, or not known to be: call again when they are
            back.
        later: The brokers of `pending` that share the cluster's configuration: they make the change when they
            are back, without another call.
        existing: Of a creation: brokers that had it already, with the same settings.
    """

    def __init__(
        self,
        answers: Iterable[_Answer] = (),
        *,
        missing: Iterable[str] = (),
        pending: Iterable[str] = (),
        later: Iterable[str] = (),
        existing: Iterable[str] = (),
    ) -> None:
        super().__init__(answers)
        self.missing = tuple(sorted(missing))
        self.later = tuple(sorted(later))
        self.pending = tuple(sorted({*pending, *self.later}))
        self.existing = tuple(sorted(existing))

    def of(self, answers: Iterable[_Other]) -> BrokerAnswers[_Other]:
        """Other answers of the same brokers."""
        return BrokerAnswers(
            answers, missing=self.missing, pending=self.pending, later=self.later, existing=self.existing
        )


class TopicDeletion(dict[str, int]):
    """The deletion of a topic: for each broker that had it, the physical offset below which its records are
    deleted. (0 where another broker of the same configuration has reported the deletion.)

    Attributes:
        pending: Brokers that did not answer, or that are lost and had the topic. It is still there when they
            are back: delete it again then.
        later: The brokers of `pending` that share the cluster's configuration: they delete it when they are
            back, without another call.
    """

    def __init__(
        self, offsets: Mapping[str, int], *, pending: Iterable[str] = (), later: Iterable[str] = ()
    ) -> None:
        super().__init__(offsets)
        self.later = tuple(sorted(later))
        self.pending = tuple(sorted({*pending, *self.later}))
