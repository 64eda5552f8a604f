"""A queue with all that its frames need from the routes and the connections."""

from __future__ import annotations

from typing import NamedTuple

from trovemq._net.append_stream import AppendStream
from trovemq._net.routes import Slot
from trovemq.models.cluster import BrokerInfo


class RecordForm(NamedTuple):
    """The form of the records that a broker's settings require."""

    store_host_ipv6: bool
    append_property_crc: bool
    born_host_ipv6: bool

    @classmethod
    def of(cls, broker: BrokerInfo, address: str) -> RecordForm:
        """The form for a broker that is dialled at `address`: BORNHOST is of that connection's family."""
        return cls(broker.store_host_ipv6, broker.append_property_crc, address.startswith("["))


class QueueRoute:
    """One queue on a live broker. It is looked up once, and used by all batches until the routes change.

    Attributes:
        version: The routes' version of which it is; with another one it is looked up again.
        slot: The queue.
        broker: Its broker.
        stream: The Append stream to that broker.
        form: The form of that broker's records.
    """

    __slots__ = ("broker", "form", "slot", "stream", "version")

    def __init__(
        self, version: int, slot: Slot, broker: BrokerInfo, stream: AppendStream, form: RecordForm
    ) -> None:
        self.version = version
        self.slot = slot
        self.broker = broker
        self.stream = stream
        self.form = form
