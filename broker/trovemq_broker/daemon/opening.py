"""Opening the state of a store: the daemon's clocks, and errors that end its start or stop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_daemon import clocks
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.clock_trust import ClockTrust
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import storage_errors

clock_ms: Final = cast("Callable[[], EpochMs]", clocks.SettledClock())
"""The time for everything but store times and removal by age."""


def open_consumer_state(store: MessageStore, settings: BrokerSettings) -> ConsumerState:
    """Reads the pending messages; blocks. Raises TroveError STORE_FAILED, STORE_NEWER, DISK_FULL."""
    with failures_that_end("the store cannot be opened"), collector_at_rest():
        model = ConsumerState.open(store, store.files, settings.consumer_settings(), clock_ms())
    if model.groups.fault:
        get_logger().warning("store.second_copy_read", reason=model.groups.fault)
    return model


def wall_ms() -> EpochMs:
    """The machine's clock."""
    return EpochMs(clocks.wall_ms())


def open_clock_trust(store: MessageStore) -> ClockTrust:
    """Raises TroveError STORE_NEWER."""
    trust = ClockTrust(store.files, clocks.boot_id())
    trust.load()
    return trust


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Stops the garbage collector: all objects that a start creates stay, and to examine them again and again
    takes a tenth of a start with 80,000 queues."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def failures_that_end(what: str) -> Iterator[None]:
    """A failed call to the disk is repeated while the broker runs, but ends its start or stop: raises
    TroveError DISK_FULL, STORE_FAILED."""
    try:
        with storage_errors(what, errors.STORE_FAILED):
            yield
    except TroveError as error:
        if error.spec not in (errors.UNKNOWN_ERROR, errors.RESOURCES_SCARCE):
            raise
        raise TroveError(errors.STORE_FAILED, error.message) from error
