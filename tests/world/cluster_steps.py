"""The steps of a cluster's life, drawn by seed. No processes, no clock: the same seed gives the same steps.

A step is a line of text, `ACTION [NAME [OTHER [NUMBER]]]`, so that a trace can be printed, cut and run again:

| step | then |
|---|---|
| `add broker-3` | it runs, and has the topics and groups; with an owner, the groups alone |
| `drain broker-2`, `undrain broker-2` | its state |
| `remove broker-2` | refused while it has messages; consumed; its place is gone |
| `kill broker-2`, `start broker-2` | SIGKILL; a start with its store |
| `stop broker-2` | SIGTERM; `start` as well |
| `freeze broker-2 - 2000` | SIGSTOP for this time, ms |
| `restart-nameserver - - 500` | SIGKILL, and a start this time later, ms |
| `create-topic topic-3 FIFO 2`, `alter-topic topic-2 - 5`, `delete-topic topic-1` | with its queues |
| `create-group group-4 topic-1`, `alter-group group-4 - 9`, `delete-group group-4` | with its consumer |
| `spread topic-2 broker-1,broker-3` | with a configuration owner: it lies on these brokers |
| `take-over broker-2` | with a configuration owner: it is the owner |

With an owner a new topic lies on the brokers that serve.

Invariants of drawn steps: one broker at least serves; KEPT is never removed; at most BROKERS_MAX
brokers; a name of a broker or group is used once, a topic's may be used again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

BROKERS_MAX: Final = 4
TOPICS_MAX: Final = 4
GROUPS_MAX: Final = 2
"""Of one topic."""
KEPT: Final = "broker-1"
"""The broker that is never removed: the ledger of `trovemq verify` is of its queues."""
FREEZE_MS: Final = (500, 3_000)
AWAY_MS: Final = (100, 1_500)
TYPES: Final = ("MIXED", "FIFO")


@dataclass(frozen=True, slots=True)
class Step:
    action: str
    name: str = ""
    other: str = ""
    number: int = 0

    def __str__(self) -> str:
        words = [self.action, self.name or "-", self.other or "-", str(self.number or "-")]
        while words[-1] == "-":
            words.pop()
        return " ".join(words)


class StepError(ValueError):
    """A step that does not fit the cluster it is applied to."""


def read_step(line: str) -> Step:
    """The step of a line. Raises StepError."""
    words = ["" if word == "-" else word for word in line.split()]
    if not 1 <= len(words) <= 4 or words[0] not in ACTIONS or (words[3:] and not words[3].isdecimal()):
        raise StepError(f"not a step: {line!r}")
    words += [""] * (4 - len(words))
    return Step(words[0], words[1], words[2], int(words[3] or 0))


@dataclass(slots=True)
class Topic:
    name: str
    message_type: str
    queue_count: int
    groups: list[str] = field(default_factory=list)
    placement: list[str] = field(default_factory=list)
    """With an owner: the brokers on which it lies."""


@dataclass(slots=True)
class Cluster:
    """The cluster as the steps have made it: brokers by name with `serving`, `drained` or `down`."""

    has_owner: bool = False
    owner: str = KEPT
    brokers: dict[str, str] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    missed: dict[str, set[str]] = field(default_factory=dict)
    """Deleted topics, with the brokers that were down then: without an owner they are still there."""
    holders: set[str] = field(default_factory=set)
    """With an owner: the brokers that have its last change."""
    brokers_made: int = 0
    topics_made: int = 0
    groups_made: int = 0

    def named(self, *states: str) -> list[str]:
        return [name for name, state in self.brokers.items() if state in states]

    def topic_of(self, group: str) -> Topic:
        for topic in self.topics.values():
            if group in topic.groups:
                return topic
        raise StepError(f"there is no group {group}")

    @property
    def can_change(self) -> bool:
        """Whether topics and groups can be changed: with an owner, while it lives."""
        return not self.has_owner or self.brokers.get(self.owner, "serving") != "down"

    def apply(self, step: Step) -> None:
        """Raises StepError if it does not fit; then nothing is changed."""
        if step.action not in ACTIONS:
            raise StepError(f"no such action: {step}")
        _APPLY[step.action](self, step)
        if step.action in _CHANGES:
            self.holders = set(self.named("serving", "drained"))
        elif step.action == "start" and self.can_change:
            self.holders |= set(self.named("serving", "drained"))

    def _move(self, step: Step, before: Iterable[str], after: str) -> None:
        state = self.brokers.get(step.name)
        if state is None or state not in before:
            raise StepError(f"{step}: the broker is {state}")
        self._leave_one(step.name, after)
        self.brokers[step.name] = after

    def _leave_one(self, name: str, after: str) -> None:
        if after != "serving" and not [one for one in self.named("serving") if one != name]:
            raise StepError(f"{name} is the last one that serves")


def _add(cluster: Cluster, step: Step) -> None:
    if step.name in cluster.brokers or len(cluster.brokers) >= BROKERS_MAX or not cluster.can_change:
        raise StepError(str(step))
    cluster.brokers[step.name] = "serving"
    cluster.brokers_made += 1


def _remove(cluster: Cluster, step: Step) -> None:
    if step.name in (KEPT, cluster.owner if cluster.has_owner else KEPT):
        raise StepError(f"{step}: it is kept")
    if cluster.named("down") or not cluster.can_change:
        # Topics of a broker that is down cannot be compared with those of the one to remove.
        raise StepError(f"{step}: a broker is down")
    cluster._move(step, ("serving", "drained"), "removed")
    del cluster.brokers[step.name]
    for topic in cluster.topics.values():
        others = [name for name in topic.placement if name != step.name]
        topic.placement = others or (cluster.named("serving") if topic.placement else [])


def _start(cluster: Cluster, step: Step) -> None:
    cluster._move(step, ("down",), "serving")
    for brokers in cluster.missed.values():
        brokers.discard(step.name)
    cluster.missed = {topic: brokers for topic, brokers in cluster.missed.items() if brokers}


def _freeze(cluster: Cluster, step: Step) -> None:
    if cluster.brokers.get(step.name) not in ("serving", "drained"):
        raise StepError(str(step))


def _create_topic(cluster: Cluster, step: Step) -> None:
    if step.name in cluster.topics or len(cluster.topics) >= TOPICS_MAX or not cluster.can_change:
        raise StepError(str(step))
    if step.other not in TYPES or step.number < 1:
        raise StepError(f"{step}: type or queues")
    if step.name in cluster.missed and not cluster.has_owner:
        raise StepError(f"{step}: the old one is still on a broker that is down")
    placement = cluster.named("serving") if cluster.has_owner else []
    cluster.topics[step.name] = Topic(step.name, step.other, step.number, placement=placement)
    cluster.topics_made += 1


def _alter_topic(cluster: Cluster, step: Step) -> None:
    topic = _topic(cluster, step)
    if topic.message_type == "FIFO" or step.number <= topic.queue_count:
        raise StepError(
            f"{step}: the order of {topic.message_type}, or not more than {topic.queue_count} queues"
        )
    topic.queue_count = step.number


def _delete_topic(cluster: Cluster, step: Step) -> None:
    _topic(cluster, step)
    if len(cluster.topics) == 1:
        raise StepError(f"{step}: the last topic")
    del cluster.topics[step.name]
    if down := cluster.named("down"):
        cluster.missed[step.name] = set(down)


def _topic(cluster: Cluster, step: Step) -> Topic:
    if step.name not in cluster.topics or not cluster.can_change:
        raise StepError(str(step))
    return cluster.topics[step.name]


def _create_group(cluster: Cluster, step: Step) -> None:
    topic = cluster.topics.get(step.other)
    if topic is None or len(topic.groups) >= GROUPS_MAX or step.name in cluster.retries:
        raise StepError(str(step))
    if not cluster.can_change:
        raise StepError(f"{step}: no owner")
    topic.groups.append(step.name)
    cluster.retries[step.name] = 16
    cluster.groups_made += 1


def _alter_group(cluster: Cluster, step: Step) -> None:
    cluster.topic_of(step.name)
    if step.number < 1 or not cluster.can_change:
        raise StepError(str(step))
    cluster.retries[step.name] = step.number


def _delete_group(cluster: Cluster, step: Step) -> None:
    topic = cluster.topic_of(step.name)
    if len(topic.groups) == 1 or not cluster.can_change:
        raise StepError(f"{step}: the last group of {topic.name}")
    topic.groups.remove(step.name)


def _spread(cluster: Cluster, step: Step) -> None:
    topic, names = _topic(cluster, step), step.other.split(",")
    if not cluster.has_owner or not all(names) or len(set(names)) < len(names):
        raise StepError(str(step))
    if not set(names) <= {*cluster.named("serving"), *topic.placement}:
        raise StepError(f"{step}: not all of them serve")
    if topic.message_type == "FIFO" and cluster.named("down"):
        raise StepError(f"{step}: it would wait for the messages of brokers that are down")
    topic.placement = names


def _take_over(cluster: Cluster, step: Step) -> None:
    if (
        not cluster.has_owner
        or cluster.brokers.get(step.name, "down") == "down"
        or step.name == cluster.owner
    ):
        raise StepError(str(step))
    if not cluster.can_change:  # the owner does not take part
        others = cluster.holders - {cluster.owner}
        if not others or others & set(cluster.named("down")):
            raise StepError(f"{step}: a broker is down that may be the only one with the last change")
    cluster.owner = step.name


_APPLY: Final[dict[str, Callable[[Cluster, Step], None]]] = {
    "add": _add,
    "drain": lambda cluster, step: cluster._move(step, ("serving",), "drained"),
    "undrain": lambda cluster, step: cluster._move(step, ("drained",), "serving"),
    "remove": _remove,
    "kill": lambda cluster, step: cluster._move(step, ("serving", "drained"), "down"),
    "stop": lambda cluster, step: cluster._move(step, ("serving", "drained"), "down"),
    "start": _start,
    "freeze": _freeze,
    "restart-nameserver": lambda cluster, step: None,
    "create-topic": _create_topic,
    "alter-topic": _alter_topic,
    "delete-topic": _delete_topic,
    "create-group": _create_group,
    "alter-group": _alter_group,
    "delete-group": _delete_group,
    "spread": _spread,
    "take-over": _take_over,
}
ACTIONS: Final = tuple(_APPLY)
_CHANGES: Final = frozenset(
    action
    for action in ACTIONS
    if action.endswith(("-topic", "-group")) or action in ("add", "remove", "spread")
)
"""Steps that change the configuration of an owner."""

_WEIGHTS: Final = {
    "add": 8,
    "remove": 14,
    "drain": 4,
    "undrain": 8,
    "kill": 4,
    "stop": 2,
    "start": 14,
    "freeze": 2,
    "restart-nameserver": 1,
    "create-topic": 2,
    "alter-topic": 1,
    "delete-topic": 2,
    "create-group": 2,
    "alter-group": 1,
    "delete-group": 2,
    "spread": 3,
    "take-over": 3,
}
"""How often an action is proposed beside the others; many proposals do not fit."""

BEGINNING: Final = (
    Step("add", KEPT),
    Step("add", "broker-2"),
    Step("create-topic", "topic-1", "MIXED", 2),
    Step("create-group", "group-1", "topic-1"),
    Step("create-topic", "topic-2", "FIFO", 2),
    Step("create-group", "group-2", "topic-2"),
)
"""The steps that each run begins with: two brokers, a topic of each type, and a group of each topic."""


def begun(*, has_owner: bool) -> Cluster:
    """A cluster after the steps of BEGINNING."""
    cluster = Cluster(has_owner=has_owner)
    for step in BEGINNING:
        cluster.apply(step)
    return cluster


def draw(source: random.Random, cluster: Cluster, count: int) -> list[Step]:
    """`count` steps that fit the cluster, and one more where a topic is the last one; they are applied."""
    steps = list[Step]()
    while len(steps) < count:
        (action,) = source.choices(ACTIONS, [_WEIGHTS[action] for action in ACTIONS])
        steps += _drawn(source, cluster, action)
    return steps


def all_up(cluster: Cluster) -> list[Step]:
    """The steps after which each broker runs and serves; they are applied."""
    steps = [Step("start", name) for name in cluster.named("down")]
    steps += [Step("undrain", name) for name in cluster.named("drained")]
    for step in steps:
        cluster.apply(step)
    return steps


def _drawn(source: random.Random, cluster: Cluster, action: str) -> Iterator[Step]:
    """A step of this action, with a topic's first group after it; none where the cluster has no place for
    it."""
    step = _proposed(source, cluster, action)
    try:
        if step is None:
            return
        cluster.apply(step)
        yield step
        if action == "create-topic":  # a topic that no group reads would keep brokers from being removed
            first = Step("create-group", f"group-{cluster.groups_made + 1}", step.name)
            cluster.apply(first)
            yield first
    except StepError:
        return


def _proposed(source: random.Random, cluster: Cluster, action: str) -> Step | None:
    if action == "add":
        return Step(action, f"broker-{cluster.brokers_made + 1}")
    if action == "restart-nameserver":
        return Step(action, number=source.randrange(*AWAY_MS))
    if action == "create-topic":
        number = source.randint(1, cluster.topics_made + 1)  # often a name that there was before
        return Step(action, f"topic-{number}", source.choice(TYPES), source.randint(1, 3))
    if action == "create-group":
        return Step(action, f"group-{cluster.groups_made + 1}", source.choice(sorted(cluster.topics)))
    if action.endswith("-topic"):
        topic = cluster.topics[source.choice(sorted(cluster.topics))]
        return Step(action, topic.name, number=topic.queue_count + 1 if action == "alter-topic" else 0)
    if action.endswith("-group"):
        groups = sorted(group for topic in cluster.topics.values() for group in topic.groups)
        number = source.randint(8, 20) if action == "alter-group" else 0
        return Step(action, source.choice(groups), number=number) if groups else None
    if action == "spread":
        serving = cluster.named("serving")
        names = source.sample(serving, source.randint(1, len(serving)))
        return Step(action, source.choice(sorted(cluster.topics)), ",".join(sorted(names)))
    name = source.choice(sorted(cluster.brokers))
    return Step(action, name, number=source.randrange(*FREEZE_MS) if action == "freeze" else 0)
