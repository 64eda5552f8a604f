"""Taking a broker out of service without a failed send: writes move to other brokers first, reads stay.

| state    | routes offer it for writing | new messages                               | other requests |
|----------|-----------------------------|--------------------------------------------|----------------|
| serving  | yes                         | stored                                     | served         |
| draining | no                          | stored, for grace_ms                       | served         |
| drained  | no                          | refused with a retriable error, except for | served         |
|          |                             | those of open atomic transactions          |                |
| stopping | no                          | as in drained, until the process ends      | served         |

`begin` leads to draining; after grace_ms the broker is drained. With a stop, it is stopping as soon as no
atomic transaction is open, after stop_wait_max_ms at the latest. `undo` leads back to serving, unless it is
stopping. The state is not stored: a restarted broker is serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from trovemq_broker.produce.append import Appender
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

TIME_MAX_MS: Final = 3_600_000
POLL_S: Final = 0.05
"""How often a drained broker counts the open atomic transactions."""


class DrainState(Enum):
    SERVING = "serving"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPING = "stopping"


class Drain:
    """The state of one broker. Used on its event loop, where `run()` must run as a task.

    withdraw: sets whether routes leave the broker out for writing, and whether they call it drained.
    open_transactions: counts the open atomic transactions.
    request_stop: asks the daemon to stop, with a reason.
    """

    def __init__(
        self,
        broker: str,
        appender: Appender,
        withdraw: Callable[[bool, bool], None],
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
        """Starts to drain. If that has begun already, the earlier end of the grace period counts.

        With stop_wait_max_ms None the drained broker does not stop. Raises REQUEST_ILLEGAL, and
        SERVICE_NOT_AVAILABLE when it is stopping.
        """
        _check_time("grace_ms", grace_ms)
        _check_time("stop_wait_max_ms", stop_wait_max_ms or 0)
        self._check_not_stopping()
        ends = asyncio.get_running_loop().time() + grace_ms / 1000
        if self.state is DrainState.SERVING:
            self.state, self._grace_ends = DrainState.DRAINING, ends
            self._withdraw(True, False)
            get_logger().info("broker.draining", grace_ms=grace_ms)
        self._grace_ends = min(self._grace_ends, ends)
        self._stop_wait_s = None if stop_wait_max_ms is None else stop_wait_max_ms / 1000
        self._stop_by = max(self._grace_ends, asyncio.get_running_loop().time()) + (self._stop_wait_s or 0)
        self._changed.set()

    def undo(self) -> None:
        """Returns to serving. Raises SERVICE_NOT_AVAILABLE when it is stopping."""
        self._check_not_stopping()
        if self.state is DrainState.SERVING:
            return
        self.state, self._stop_wait_s = DrainState.SERVING, None
        self._appender.drain(None)
        self._withdraw(False, False)
        get_logger().info("broker.serving_again")
        self._changed.set()

    async def run(self) -> None:
        """Changes the state when its time has come; runs until it is cancelled."""
        while True:
            self._changed.clear()
            wait_s = self._step(asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _step(self, now: float) -> float | None:
        """Changes the state if its time has come. Returns the seconds until the next call, None for no
        limit."""
        if self.state is DrainState.DRAINING:
            if now < self._grace_ends:
                return self._grace_ends - now
            self.state = DrainState.DRAINED
            self._appender.drain(TroveError(errors.SERVICE_NOT_AVAILABLE, self._refusal))
            self._withdraw(True, True)
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
