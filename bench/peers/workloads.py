"""The workloads: who does them, and the goals of our clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

REDIS, NATS, KAFKA = "Redis streams", "NATS JetStream", "Kafka"
ALL: Final = (REDIS, NATS, KAFKA)
Value = Literal["rate", "p50_us", "p99_us", "server_us"]
LATENCY: Final[tuple[Value, ...]] = ("p50_us", "p99_us", "server_us")
RATE: Final[tuple[Value, ...]] = ("rate", "server_us")


@dataclass(frozen=True, slots=True)
class Goal:
    """Of one of our clients: a factor of the best of these peers, or without peers a figure."""

    client: str
    value: Value
    bound: float
    peers: tuple[str, ...] = ALL


@dataclass(frozen=True, slots=True)
class Workload:
    """clients: with the messages that each has in flight. filled: it reads the messages of `produce`."""

    name: str
    work: str
    clients: Mapping[str, int]
    shown: tuple[Value, ...]
    goals: tuple[Goal, ...] = ()
    synced: bool = False
    filled: bool = False
    rate: int = 0


ALONE: Final = {"single": 1, "redis-py": 1, "nats-py": 1, "confluent-kafka": 1}
WITH_SLEEPING: Final = ALONE | {"sleeping": 1}
MANY: Final = {"redis-py": 500, "nats-py": 4_000, "confluent-kafka": 0}
W1 = "W1 one send at a time"
W1_SYNCED: Final = f"{W1}, synced"
WORKLOADS: Final = (
    Workload(
        f"{W1}, async flush",
        "one_at_a_time",
        WITH_SLEEPING,
        LATENCY,
        (Goal("single", "p50_us", 1.0, (NATS,)), Goal("single", "p50_us", 1.0, (REDIS,))),
    ),
    Workload(W1_SYNCED, "one_at_a_time", ALONE, LATENCY, synced=True),
    Workload(
        "W2 produce in batches",
        "produce",
        {"batch": 16_000} | MANY,
        RATE,
        (Goal("batch", "rate", 1.0, (KAFKA,)),),
    ),
    Workload(
        "W3 consume from the start",
        "consume",
        {"batch": 16_000, "single": 16_000} | MANY,
        RATE,
        (Goal("batch", "rate", 1.0, (KAFKA,)), Goal("single", "rate", 0.5, (KAFKA,))),
        filled=True,
    ),
    Workload(
        "W4 live, 1,000/s",
        "live",
        WITH_SLEEPING,
        LATENCY,
        (
            Goal("single", "p50_us", 400.0, ()),
            Goal("single", "p99_us", 2_000.0, ()),
            Goal("single", "p50_us", 1.5),
            Goal("single", "server_us", 1.5, (REDIS,)),
        ),
        rate=1_000,
    ),
    Workload(
        "W4 live, 20,000/s",
        "live",
        {"single": 1},
        LATENCY,
        (Goal("single", "p99_us", 10_000.0, ()),),
        rate=20_000,
    ),
    Workload(
        "W5 64 in flight, synced",
        "produce",
        {"batch": 64, "single": 64, "redis-py": 64, "nats-py": 64, "confluent-kafka": 64},
        RATE,
        (Goal("batch", "rate", 1.5), Goal("single", "rate", 1.0)),
        synced=True,
    ),
    Workload(
        "W7 group, each acknowledged",
        "group",
        {"group": 16_000, "group-batch": 16_000, "redis-py": 500, "nats-py": 4_000},
        RATE,
        (
            Goal("group-batch", "rate", 1.0, (REDIS,)),
            Goal("group", "rate", 1.0, (REDIS,)),
            Goal("group", "rate", 2.0, (NATS,)),
        ),
        filled=True,
    ),
    Workload(
        "Single sends, 4,000 in flight",
        "produce",
        {"single": 4_000},
        RATE,
        (Goal("single", "rate", 60_000.0, ()),),
    ),
)
