"""Unacknowledged messages of one channel, each with a lease of the broker.

The broker renews the lease of a message while its client lives, for three hours (`renewed_total_max_ms`). A
task may take longer: the channel extends the leases that are older than `renew_after` seconds, to
`renewed_lease` seconds from then, and again when half of that is over. An extended lease does not end with
its worker, so a message of a killed worker is delivered again after `renewed_lease` seconds at most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trovemq._kombu.readers import begun
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

RENEW_AFTER_DEFAULT: Final = 9_000.0  # 2.5 hours
RENEWED_LEASE_DEFAULT: Final = 600.0
RETURN_SECONDS_MAX: Final = 5.0
"""For all messages together: a broker that is away answers none of them, and delivers them again when their
leases end."""


class Leased(Protocol):
    """A message of `trovemq.sync`."""

    topic: str

    def consumed(self) -> None: ...
    def nack(self, delay: float | None = None) -> None: ...
    def dead_letter(self) -> None: ...
    def extend(self, duration: float) -> None: ...


@dataclass(slots=True)
class Held:
    """A message that was delivered and not settled. `renew_at`: in the clock's time."""

    message: Any  # kombu's
    leased: Leased | None
    renew_at: float


class QoS:
    """The interface that kombu asks of a channel's unacknowledged messages. Any thread may settle one.

    Args:
        prefetch_count: How many messages may be unacknowledged; 0: any number.
        renew_after: Seconds after which this side renews a lease.
        renewed_lease: Seconds to which it extends it.
        clock: Monotonic seconds.
        settled: Called after each settlement, by the thread that settles.
    """

    def __init__(
        self,
        prefetch_count: int = 0,
        *,
        renew_after: float = RENEW_AFTER_DEFAULT,
        renewed_lease: float = RENEWED_LEASE_DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self.prefetch_count = prefetch_count
        self._renew_after = renew_after
        self._renewed_lease = renewed_lease
        self._clock = clock
        self._settled = settled
        self._held: dict[str, Held] = {}
        self._leased: dict[str, Leased] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._renewer: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    def can_consume(self) -> bool:
        """Whether another message may be delivered."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """How many more may be delivered; None: any number."""
        return max(self.prefetch_count - len(self._held), 0) if self.prefetch_count else None

    def lease(self, delivery_tag: str, leased: Leased) -> None:
        """Notes the lease of a message that is delivered next."""
        self._leased[delivery_tag] = leased

    def unlease(self, delivery_tag: str) -> None:
        """Acknowledges at once a message that its consumer does not acknowledge (`no_ack`)."""
        leased = self._leased.pop(delivery_tag, None)
        if leased is not None:
            self.settle(leased.consumed)

    def append(self, message: Any, delivery_tag: str) -> None:
        """A message was delivered to the program."""
        leased = self._leased.pop(delivery_tag, None)
        with self._lock:
            self._held[delivery_tag] = Held(message, leased, self._clock() + self._renew_after)
            if self._renewer is None and leased is not None and not self._closed.is_set():
                self._renewer = threading.Thread(target=self._renew, name="trovemq renewal", daemon=True)
                self._renewer.start()

    def get(self, delivery_tag: str) -> Any:
        """The message. Raises KeyError if it was settled."""
        return self._held[delivery_tag].message

    def ack(self, delivery_tag: str) -> None:
        """Acknowledges it, together with others, without waiting for the broker. A second call
        does nothing."""
        held = self._pop(delivery_tag)
        if held is not None and held.leased is not None:
            self.settle(held.leased.consumed)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Returns it for delivery at once, or moves it to the dead letters of the group."""
        held = self._pop(delivery_tag)
        if held is None or held.leased is None:
            return
        if requeue:
            self.settle(held.leased.nack, 0)
        else:
            self.settle(held.leased.dead_letter)

    def restore_unacked(self) -> None:
        """Returns all unacknowledged messages for delivery at once."""
        self.return_all(self._pop_all())

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Returns them at the channel's end, and renews no more leases."""
        self.close(())

    def close(self, ahead: Iterable[Leased]) -> None:
        """Returns them and those that were received ahead, and renews no more leases."""
        self._closed.set()
        self.return_all([*ahead, *self._pop_all()])

    def return_all(self, messages: Sequence[Leased]) -> None:
        """Returns these for delivery at once. Waits for the broker, at most RETURN_SECONDS_MAX."""
        if not messages:
            return
        given_up = threading.Event()

        def return_each() -> None:
            for message in messages:
                if given_up.is_set():
                    return
                self.settle(message.nack, 0)

        thread = begun(return_each, "trovemq return")
        if thread is not None:
            thread.join(RETURN_SECONDS_MAX)
        if thread is not None and thread.is_alive():
            given_up.set()
            _log.warning(
                "the broker does not answer: it delivers the messages of this worker again when their leases"
                " end (at most %d)",
                len(messages),
            )

    def restore_visible(self, *args: object, **kwargs: object) -> None:
        """Nothing: the broker delivers again when a lease ends."""

    def renew_due(self, now: float) -> int:
        """Extends the leases that are due; returns how many."""
        with self._lock:
            due = [held for held in self._held.values() if held.leased is not None and held.renew_at <= now]
            for held in due:
                held.renew_at = now + self._renewed_lease / 2
        for held in due:
            assert held.leased is not None
            self.settle(held.leased.extend, self._renewed_lease)
        return len(due)

    def _renew(self) -> None:
        interval = min(self._renew_after, self._renewed_lease / 2) / 4
        while not self._closed.wait(interval):
            self.renew_due(self._clock())

    def _pop(self, delivery_tag: str) -> Held | None:
        with self._lock:
            return self._held.pop(delivery_tag, None)

    def _pop_all(self) -> list[Leased]:
        with self._lock:
            held = [one.leased for one in self._held.values() if one.leased is not None]
            self._held.clear()
        return held

    def holds(self, topic: str) -> bool:
        """Whether a message of the topic is unacknowledged."""
        with self._lock:
            return any(held.leased is not None and held.leased.topic == topic for held in self._held.values())

    def settle(self, call: Callable[..., None], *arguments: float) -> None:
        """Calls it. A settlement that fails means that the message is delivered again: no error of the
        program."""
        try:
            call(*arguments)
        except TroveError as error:
            _log.warning("a message was not settled, and is delivered again: %s", error)
        self._settled()
