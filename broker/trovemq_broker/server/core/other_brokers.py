"""The cluster's other brokers, as routes and forwarded calls need them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from trovemq_daemon.addresses import Address

NO_PLACEMENT: Final[Mapping[str, int]] = MappingProxyType({})


def no_placement(_topic: str) -> Mapping[str, int]:
    """The queues of a topic by broker, at a broker whose configuration is its own."""
    return NO_PLACEMENT


class OtherQueues(Protocol):
    """The queues of a topic on one other broker: 0 .. queue_count - 1."""

    @property
    def broker(self) -> str: ...

    @property
    def address(self) -> Address: ...

    @property
    def tls_address(self) -> Address | None: ...

    @property
    def draining(self) -> bool:
        """Whether it asks for messages to be sent to other brokers."""
        ...

    @property
    def queue_count(self) -> int: ...

    @property
    def message_type(self) -> str: ...

    @property
    def placement(self) -> Mapping[str, int]:
        """The topic's queues by broker, of a FIFO topic; or of one that has no place on this broker any more,
        which gets no new messages. Empty if its route has none."""
        ...


class OtherBrokers(Protocol):
    """The other brokers that are live."""

    def holding(self, topic: str) -> Sequence[OtherQueues]:
        """The brokers that have the topic, by name."""
        ...

    def without(self, topic: str, placement: Mapping[str, int]) -> Sequence[OtherQueues]:
        """The placement's brokers that are away, or do not have the topic yet, by name; without
        those whose address is not known."""
        ...

    def names(self) -> Sequence[str]: ...

    def addresses(self) -> Mapping[str, str]:
        """The addresses for plain connections, by name."""
        ...

    def knows(self, broker: str) -> bool:
        """Whether it is one of them, or was: the routes remember brokers that are away."""
        ...

    def remembered(self) -> Sequence[str]:
        """The names of all that it knows: the live ones first."""
        ...

    def lost(self) -> Collection[str]:
        """The names of those that nameservers have lost."""
        ...

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` is called when there are other ones than before, live or lost."""
        ...

    def draining(self) -> Sequence[str]:
        """The brokers that ask for messages to be sent to others."""
        ...

    def advertises(self, address: Address, *, by_tls: bool) -> bool:
        """Whether one of them advertises the address, for TLS or for plain connections."""
        ...

    def advertised(self, address: Address, *, by_tls: bool) -> bool:
        """The same, also of brokers that are away."""
        ...


class _NoOthers:
    def holding(self, topic: str) -> Sequence[OtherQueues]:
        return ()

    def without(self, topic: str, placement: Mapping[str, int]) -> Sequence[OtherQueues]:
        return ()

    def names(self) -> Sequence[str]:
        return ()

    def addresses(self) -> Mapping[str, str]:
        return {}

    def knows(self, broker: str) -> bool:
        return False

    def remembered(self) -> Sequence[str]:
        return ()

    def lost(self) -> Collection[str]:
        return ()

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """It has no changes."""

    def draining(self) -> Sequence[str]:
        return ()

    def advertises(self, address: Address, *, by_tls: bool) -> bool:
        return False

    def advertised(self, address: Address, *, by_tls: bool) -> bool:
        return False


NO_OTHERS: Final[OtherBrokers] = _NoOthers()
