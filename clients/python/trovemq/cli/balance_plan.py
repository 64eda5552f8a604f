"""A plan that evens out the load of brokers by giving few topics other brokers. It reads and changes nothing.

A topic's weight is its share of all new messages and its share of all stored bytes, together 0 to 2. Each of
its queues gets the same part of it, and a drained broker gets none: so the loads are those after a while,
when the messages that are stored now have been removed.

Each step takes the one topic and the brokers for it that even the loads out the most, until the highest load
is little above the lowest, or no step helps. So few topics get other brokers, and each once at most.

Invariants
- The distance between the highest and the lowest load never grows.
- Drained brokers get nothing. FIFO topics keep their brokers unless `fifo`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trovemq._admin.spreading import placement_on

STEPS_MAX: Final = 100
CANDIDATES_MAX: Final = 256
"""Topics of the most loaded broker that one step looks at: those of the greatest weight."""
EVEN: Final = 0.1
"""Of the mean load: a smaller distance counts as even."""
_LEAST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PlacedTopic:
    """`rate`: new messages a second; `size`: bytes of the stored ones; both on all brokers together."""

    name: str
    placement: Mapping[str, int]
    rate: float
    size: float
    is_fifo: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """The topic is to lie on these brokers."""

    topic: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """`before`, `after`: the load of each broker that is not drained."""

    moves: tuple[Move, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]


def distance(loads: Mapping[str, float]) -> float:
    """Between the highest and the lowest load."""
    return max(loads.values(), default=0.0) - min(loads.values(), default=0.0)


def weights_of(topics: Sequence[PlacedTopic]) -> dict[str, float]:
    """The weight of each topic, by name."""
    rates, sizes = sum(one.rate for one in topics), sum(one.size for one in topics)
    return {
        one.name: (one.rate / rates if rates else 0.0) + (one.size / sizes if sizes else 0.0)
        for one in topics
    }


def loads_of(
    placements: Mapping[str, Mapping[str, int]], weights: Mapping[str, float], brokers: Collection[str]
) -> dict[str, float]:
    """The load of each broker."""
    loads = dict.fromkeys(sorted(brokers), 0.0)
    for name, placement in placements.items():
        for broker, part in _parts(placement, weights[name], loads).items():
            loads[broker] += part
    return loads


def plan(
    topics: Sequence[PlacedTopic],
    brokers: Collection[str],
    drained: Collection[str] = (),
    *,
    fifo: bool = False,
) -> BalancePlan:
    """`brokers`: the live ones, drained ones among them."""
    serving = sorted(set(brokers) - set(drained))
    weights = weights_of(topics)
    placements = {one.name: dict(one.placement) for one in topics}
    movable = {one.name for one in topics if fifo or not one.is_fifo}
    before = loads_of(placements, weights, serving)
    chosen: dict[str, tuple[str, ...]] = {}
    if not serving:
        return BalancePlan((), before, before)
    for one in topics:  # no broker takes its messages now
        if one.name in movable and not any(one.placement.get(name) for name in serving):
            chosen[one.name] = tuple(serving)
            placements[one.name] = placement_on(one.placement, serving, None)
    loads = loads_of(placements, weights, serving)
    while len(chosen) < STEPS_MAX and distance(loads) > EVEN * sum(loads.values()) / len(serving):
        best = _best_step(placements, weights, loads, movable - chosen.keys())
        if best is None:
            break
        name, target = best
        chosen[name] = target
        placements[name] = placement_on(placements[name], target, None)
        loads = loads_of(placements, weights, serving)
    moves = tuple(Move(name, target) for name, target in chosen.items())
    return BalancePlan(moves, before, loads)


def _best_step(
    placements: Mapping[str, Mapping[str, int]],
    weights: Mapping[str, float],
    loads: Mapping[str, float],
    movable: Collection[str],
) -> tuple[str, tuple[str, ...]] | None:
    """The topic and its brokers; None if no step helps."""
    most, least = max(loads, key=loads.__getitem__), min(loads, key=loads.__getitem__)
    there = [name for name in movable if placements[name].get(most) and weights[name] > _LEAST]
    there.sort(key=lambda name: (-weights[name], name))
    present, best = _unevenness(loads), None
    for name in there[:CANDIDATES_MAX]:
        parts = _parts(placements[name], weights[name], loads)
        for target in _targets(placements[name], loads, most, least):
            after = dict(loads)
            for broker, part in parts.items():
                after[broker] -= part
            for broker, part in _parts(
                placement_on(placements[name], target, None), weights[name], loads
            ).items():
                after[broker] += part
            found = _unevenness(after)
            if (
                found[0] <= present[0]
                and found[1] < present[1] - _LEAST
                and (best is None or found < best[0])
            ):
                best = found, name, target
    return None if best is None else best[1:]


def _targets(
    placement: Mapping[str, int], loads: Mapping[str, float], most: str, least: str
) -> Iterator[tuple[str, ...]]:
    """Other brokers for a topic: without the most loaded one, with the least loaded one, both, or all."""
    present = {name for name in placement if name in loads}
    wanted = (present - {most}, present | {least}, present - {most} | {least}, set(loads))
    for brokers in dict.fromkeys(tuple(sorted(one)) for one in wanted):
        if brokers and set(brokers) != present:
            yield brokers


def _unevenness(loads: Mapping[str, float]) -> tuple[float, float]:
    mean = sum(loads.values()) / len(loads)
    return distance(loads), sum((load - mean) ** 2 for load in loads.values())


def _parts(placement: Mapping[str, int], weight: float, loads: Mapping[str, float]) -> dict[str, float]:
    """The part of a topic's weight on each broker."""
    queues = {name: count for name, count in placement.items() if name in loads and count}
    total = sum(queues.values())
    return {name: weight * count / total for name, count in queues.items()}
