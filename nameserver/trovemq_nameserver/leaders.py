"""Which node of a replica group has a broker name: the leader of the highest epoch, at once.

| the name is of              | a claim of it                          | then                              |
|-----------------------------|----------------------------------------|-----------------------------------|
| a leader of the same group, | with a higher epoch                    | it has the name, and the one      |
| or a broker without a group |                                        | before gets EPOCH_STALE           |
| the same                    | with a lower epoch, or none            | EPOCH_STALE                       |
| the same                    | with the same epoch, of another node   | BROKER_NAME_TAKEN                 |
| another group               | with any epoch                         | BROKER_NAME_TAKEN                 |
| no broker any more          | of the same group with a lower epoch   | EPOCH_STALE, for KEPT_MS          |
|                             | of another group, or of none           | it has the name                   |

The last row is why epochs are kept: a leader that was paused must not come back where its successor has just
left. They are kept in memory alone; Forget forgets one, and so does a restart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trovemq_nameserver.broker import Broker
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

KEPT_MS: Final = 24 * 3_600_000
"""Also the time for which a lost broker is known."""


class _Known(NamedTuple):
    broker: Broker
    heard_at: int


class KnownLeaders:
    """The last leader of each name, the latest ones of at most `names_max` names. No clock: times are those
    of the route table."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._by_name: dict[str, _Known] = {}

    def check(self, broker: Broker, now: int) -> None:
        """Raises TroveError EPOCH_STALE where a later leader of the same group has registered."""
        known = self._by_name.get(broker.name)
        if known is None or broker.leader is None or now - known.heard_at >= KEPT_MS:
            return
        later = known.broker
        assert later.leader is not None
        if later.leader.group_id == broker.leader.group_id and later.epoch > broker.epoch:
            raise epoch_stale(broker, later)

    def registered(self, broker: Broker, now: int) -> None:
        """The broker has the name now."""
        self._by_name.pop(broker.name, None)
        if broker.leader is not None:
            self._by_name[broker.name] = _Known(broker, now)
            while len(self._by_name) > self._names_max:
                del self._by_name[next(iter(self._by_name))]

    def left(self, name: str, now: int) -> None:
        """The leader of the name has left the routes: its epoch is kept from now on."""
        known = self._by_name.get(name)
        if known is not None:
            self._by_name[name] = known._replace(heard_at=now)

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)


def takes_over(broker: Broker, before: Broker) -> bool:
    """Whether the claim has the name at once. Raises TroveError EPOCH_STALE."""
    if broker.epoch == before.epoch:
        return False
    if None not in (broker.leader, before.leader) and _group(broker) != _group(before):
        return False
    if broker.epoch < before.epoch:
        raise epoch_stale(broker, before)
    return True


def epoch_stale(broker: Broker, later: Broker) -> TroveError:
    """`later` leads the broker's group, or has led it."""
    assert later.leader is not None, "it has an epoch"
    text = (
        f"{broker.address} claims broker name {broker.name!r} with epoch {broker.epoch}; node "
        f"{later.leader.node} at {later.address} has led the group with epoch {later.epoch}"
    )
    fields = {"leader": later.leader.node, "address": later.address, "epoch": str(later.epoch)}
    return TroveError(errors.EPOCH_STALE, text, **fields)


def _group(broker: Broker) -> str:
    return "" if broker.leader is None else broker.leader.group_id
