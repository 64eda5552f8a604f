"""Whether the broker takes new messages: not while it stops, is held or drained, or its disk is full."""

from __future__ import annotations

from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore


class Admission:
    """The reasons for which appends are refused."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._refusal: TroveError | None = None
        self._held: TroveError | None = None
        self._drained: TroveError | None = None
        self._accepting = True  # none of the three is set

    def refuse(self, error: TroveError) -> None:
        """Refuses every append with this error from now on, because the broker is stopping."""
        self._refusal = error
        self._accepting = False

    def hold(self, error: TroveError | None) -> None:
        """Refuses new messages with this error, until called with None; the broker's own records are still
        appended."""
        self._held = error
        self._set_accepting()

    def drain(self, error: TroveError | None) -> None:
        """Refuses new messages and transactions with this error, until called with None; open atomic
        transactions may continue."""
        self._drained = error
        self._set_accepting()

    def _set_accepting(self) -> None:
        self._accepting = self._refusal is None and self._held is None and self._drained is None

    def check_running(self) -> None:
        """Raises the error with which everything is refused when the broker stops."""
        if self._refusal is not None:
            raise self._refusal

    @property
    def drained(self) -> bool:
        """Whether the broker refuses new messages because it is drained."""
        return self._drained is not None

    def check_not_drained(self) -> None:
        """Raises the error with which a drained broker refuses new messages and transactions."""
        self.check_running()
        if self._drained is not None:
            raise self._drained

    @property
    def accepts(self) -> bool:
        """Whether check_accepting() raises nothing."""
        return self._accepting and not self._store.reserve.refuses

    def check_accepting(self, *, of_open_transaction: bool = False) -> None:
        """Raises an error if new messages are refused."""
        if of_open_transaction:
            self.check_running()
        else:
            self.check_not_drained()
        if self._held is not None:
            raise self._held
        self._store.reserve.check()
