"""A broker is taken out of service without a failed send: writes leave first, reads stay until it stops.

| state    | routes offer it for writing | new messages                          | all else  |
|----------|-----------------------------|---------------------------------------|-----------|
| serving  | yes                         | stored                                | served    |
| draining | no                          | stored, for grace_ms                  | served    |
| drained  | no                          | refused, retriable; of atomic         | served    |
|          |                             | transactions that are open: stored    |           |
| stopping | no                          | as drained, until the stop            | served    |

serving -begin-> draining -grace_ms-> drained -undo-> serving; with `stop`: drained -no atomic transaction is
open, or stop_wait_max_ms passed-> stopping. `undo` counts until stopping. Nothing is kept: a restart serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from broker.produce.append import Appender
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

TIME_MAX_MS: Final = 3_600_000
POLL_S: Final = 0.05
"""How often it is looked whether atomic transactions are open."""


class DrainState(Enum):
    SERVING = "serving"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPING = "stopping"


class Drain:
    """For one event loop; `run()` beside it.

    withdraw: takes the broker out of the routes for writing, or puts it back. open_transactions: atomic ones.
    request_stop: asks the daemon to stop, with a reason.
    """

    def __init__(
        self,
        broker: str,
        appender: Appender,
        withdraw: Callable[[bool], None],
        open_transactions: Callable[[], int],
        request_stop: Callable[[str], None],
    ) -> None:
        self._appender = appender
        self._withdraw = withdraw
        self._open_transactions = open_transactions
        self._request_stop = request_stop
        self._refusal = f"broker {broker} is drained and takes no new messages: send to another broker"
        self._changed = asyncio.Event()
        self._grace_ends = 0.0
        self._stop_wait_s: float | None = None
        self._stop_by = 0.0
        self.state = DrainState.SERVING

    @property
    def offers_writes(self) -> bool:
        """Whether routes may offer this broker for writing."""
        return self.state is DrainState.SERVING

    @property
    def stops(self) -> bool:
        return self._stop_wait_s is not None

    @property
    def open_transactions(self) -> int:
        return self._open_transactions()

    def begin(self, grace_ms: int, stop_wait_max_ms: int | None) -> None:
        """Drains; one that is draining already keeps the earlier end of its grace. None: it does not stop.

        Raises REQUEST_ILLEGAL, SERVICE_NOT_AVAILABLE (it is stopping).
        """
        _check_time("grace_ms", grace_ms)
        _check_time("stop_wait_max_ms", stop_wait_max_ms or 0)
        self._check_not_stopping()
        ends = asyncio.get_running_loop().time() + grace_ms / 1000
        if self.state is DrainState.SERVING:
            self.state, self._grace_ends = DrainState.DRAINING, ends
            self._withdraw(True)
            get_logger().info("broker.draining", grace_ms=grace_ms)
        self._grace_ends = min(self._grace_ends, ends)
        self._stop_wait_s = None if stop_wait_max_ms is None else stop_wait_max_ms / 1000
        self._stop_by = max(self._grace_ends, asyncio.get_running_loop().time()) + (self._stop_wait_s or 0)
        self._changed.set()

    def undo(self) -> None:
        """Serves as before. Raises SERVICE_NOT_AVAILABLE (it is stopping)."""
        self._check_not_stopping()
        if self.state is DrainState.SERVING:
            return
        self.state, self._stop_wait_s = DrainState.SERVING, None
        self._appender.drain(None)
        self._withdraw(False)
        get_logger().info("broker.serving_again")
        self._changed.set()

    async def run(self) -> None:
        """Goes from state to state when it is time, until it is cancelled."""
        while True:
            self._changed.clear()
            wait_s = self._step(asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _step(self, now: float) -> float | None:
        """One change of state, where it is time; the seconds until the next look."""
        if self.state is DrainState.DRAINING:
            if now < self._grace_ends:
                return self._grace_ends - now
            self.state = DrainState.DRAINED
            self._appender.drain(TroveError(errors.SERVICE_NOT_AVAILABLE, self._refusal))
            get_logger().info("broker.drained")
        if self.state is DrainState.DRAINED and self._stop_wait_s is not None:
            if self._open_transactions() and now < self._stop_by:
                return POLL_S
            self.state = DrainState.STOPPING
            self._request_stop("drained")
        return None

    def _check_not_stopping(self) -> None:
        if self.state is DrainState.STOPPING:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping")


def _check_time(name: str, value_ms: int) -> None:
    if not 0 <= value_ms <= TIME_MAX_MS:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name} {value_ms} is not 0 to {TIME_MAX_MS}")
