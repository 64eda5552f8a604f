"""Faults of a cluster of several brokers: things that one lacks, differences, uneven loads.

Only brokers that serve are compared, each with those of its cluster: a drained one is leaving. Where they
share one configuration, a topic lies where it says, and the check `configuration` names the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from shlex import join
from typing import Final, TypeVar

from trovemq.cli.doctor_evidence import BrokerEvidence, Evidence, Finding, Holdings, Load
from trovemq.cli.render import humane_size
from trovemq.models.cluster import TopicDescription
from trovemq.models.group import BACKOFF_MS_DEFAULT, GroupDescription, GroupSettings

NAMED_MAX: Final = 8
UNEVEN_FACTOR: Final = 3
RATE_MIN: Final = 100
BYTES_MIN: Final = 1 << 30
QUEUES_MIN: Final = 32

_Thing = TypeVar("_Thing")
_Held = Mapping[str, Holdings]
"""The holdings of each broker of a cluster, by name."""
_SEE_ALL: Final = (
    "see the entries to mend: trovemq cluster config; where topics lie: trovemq cluster balance --dry-run"
)
_SEE_CONFIG: Final = "see which settings are the cluster's, and the command: trovemq cluster config"


def topic_spread(evidence: Evidence) -> Iterator[Finding]:
    """Every broker of a cluster has each topic, with the same settings."""
    for held in _clusters(evidence):
        topics = {name: one.topics for name, one in held.items()}
        shares = _is_shared(evidence, topics)
        yield from _lacked(
            "topic_spread", "topic", topics, _spread_topic if shares else _create_topic, shares=shares
        )
        yield from _first_ones("topic_spread", "topic", _topics_that_differ(topics, shares=shares))


def _is_shared(evidence: Evidence, brokers: Iterable[str]) -> bool:
    """Whether all of these have the configuration of one cluster."""
    clusters = {one.broker: one.cluster for one in evidence.configs if one.has_table}
    return len({clusters.get(name) for name in brokers} - {None}) == 1 and set(brokers) <= clusters.keys()


def _topics_that_differ(
    topics: Mapping[str, Mapping[str, TopicDescription]], *, shares: bool
) -> Iterator[Finding]:
    for name, having in _by_name(topics):
        said = {broker: _topic_text(topic) for broker, topic in having.items()}
        if shares and len({(one.message_type, *sorted(one.options.items())) for one in having.values()}) == 1:
            continue  # each broker has as many queues as the configuration says
        if len(set(said.values())) > 1:
            what = f"topic {name} differs: {_listed(said)}"
            to_do = f"make it the same, with as many queues as the most: trovemq topic alter {name}"
            to_do = _SEE_CONFIG if shares else to_do
            yield Finding("topic_spread", ", ".join(said), what, to_do)


def group_spread(evidence: Evidence) -> Iterator[Finding]:
    """Every broker of a cluster has each group that was created, with the same settings."""
    for held in _clusters(evidence):
        groups = {name: one.groups for name, one in held.items()}
        shares = _is_shared(evidence, groups)
        yield from _lacked(
            "group_spread", "group", groups, _see_config if shares else _create_group, shares=shares
        )
        yield from _first_ones("group_spread", "group", _groups_that_differ(groups, shares=shares))


def _groups_that_differ(
    groups: Mapping[str, Mapping[str, GroupDescription]], *, shares: bool
) -> Iterator[Finding]:
    for name, having in _by_name(groups):
        if len({group.settings for group in having.values()}) > 1:
            what = f"group {name} has other settings on each of {', '.join(having)}"
            to_do = f"compare trovemq group describe {name}, then: trovemq group alter {name}"
            to_do = _SEE_CONFIG if shares else to_do
            yield Finding("group_spread", ", ".join(having), what, to_do)


def _first_ones(check: str, noun: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """The first ones that differ, and how many more there are."""
    yield from islice(found, NAMED_MAX)
    if more := list(found):
        where = ", ".join(sorted({name for one in more for name in one.where.split(", ")}))
        what = f"{len(more):,} more {noun}s differ between brokers"
        yield Finding(check, where, what, f"compare: trovemq {noun} list")


def balance(evidence: Evidence) -> Iterator[Finding]:
    """Rates, sizes and queues of a cluster's brokers are of the same order."""
    for held in _clusters(evidence):
        for most, fewest, text in uneven({name: one.load for name, one in held.items()}):
            to_do = f"see which topics {fewest} lacks: trovemq topic list --broker {fewest}"
            yield Finding("balance", most, text, to_do, note=True)


def uneven(loads: Mapping[str, Load]) -> Iterator[tuple[str, str, str]]:
    """Of each measure that differs much: the brokers with most and least of it, and a text."""
    for what, least, value, text in _MEASURES:
        values = {name: found for name, one in loads.items() if (found := value(one)) is not None}
        if len(values) < 2:
            continue
        most, fewest = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
        if values[most] >= max(least, UNEVEN_FACTOR * values[fewest]):
            yield most, fewest, f"{text(values[most])} {what}; {fewest} has {text(values[fewest])}"


_MEASURES: Final[Sequence[tuple[str, float, Callable[[Load], float | None], Callable[[float], str]]]] = (
    ("messages a second", RATE_MIN, lambda one: one.rate, lambda value: f"{value:,.0f}"),
    ("of stored messages", BYTES_MIN, lambda one: one.log_bytes, lambda value: humane_size(int(value))),
    ("queues", QUEUES_MIN, lambda one: one.queue_count, lambda value: f"{value:,.0f}"),
)


def _clusters(evidence: Evidence) -> Iterable[_Held]:
    """The brokers of each cluster that are compared; a cluster of one has nothing to compare."""
    found: dict[str, dict[str, Holdings]] = {}
    for broker in evidence.brokers:
        if broker.holdings is not None and _serves(broker):
            found.setdefault(broker.info.cluster, {})[broker.info.name] = broker.holdings
    return [held for held in found.values() if len(held) > 1]


def _serves(broker: BrokerEvidence) -> bool:
    return broker.condition is not None and broker.condition.drain == "serving"


def _by_name(held: Mapping[str, Mapping[str, _Thing]]) -> Iterator[tuple[str, dict[str, _Thing]]]:
    """Each name, with the descriptions of the brokers that have it."""
    for name in sorted({name for things in held.values() for name in things}):
        yield name, {broker: things[name] for broker, things in held.items() if name in things}


def _lacked(
    check: str,
    noun: str,
    held: Mapping[str, Mapping[str, _Thing]],
    create: Callable[[Mapping[str, _Thing], str], str],
    *,
    shares: bool,
) -> Iterator[Finding]:
    """The things that each broker lacks, with the command that makes them there."""
    everything = dict(_by_name(held))
    for broker, things in held.items():
        lacked = {name: having for name, having in everything.items() if name not in things}
        if len(lacked) > NAMED_MAX:
            some = ", ".join(list(lacked)[:NAMED_MAX])
            what = f"it lacks {len(lacked):,} {noun}s that other brokers have: {some}, …"
            to_do = f"trovemq export > cluster.yaml, then: trovemq apply cluster.yaml --broker {broker}"
            to_do = _SEE_ALL if shares else to_do
            yield Finding(check, broker, what, to_do, note=True)
            continue
        for name, having in lacked.items():
            what = f"it lacks {noun} {name}, which {', '.join(having)} {'have' if len(having) > 1 else 'has'}"
            yield Finding(check, broker, what, create(having, broker), note=True)


def _spread_topic(having: Mapping[str, TopicDescription], broker: str) -> str:
    topic = next(iter(having.values()))
    words = ["trovemq", "topic", "spread", topic.topic, "--brokers", ",".join([*having, broker])]
    return f"if it is to be there, too: {join(words)}"


def _see_config(having: Mapping[str, GroupDescription], broker: str) -> str:
    return "see whether it is of the cluster's configuration, and the command: trovemq cluster config"


def _create_topic(having: Mapping[str, TopicDescription], broker: str) -> str:
    topic = next(iter(having.values()))
    words = ["trovemq", "topic", "create", topic.topic, "--queues", str(topic.queue_count)]
    words += ["--type", topic.message_type] if topic.message_type != "NORMAL" else []
    for name, value in topic.options.items():
        if name == "indexed_properties":
            words += [word for one in value.split(",") for word in ("--indexed-property", one)]
        else:
            words += [f"--{name.replace('_', '-')}", value]
    return join([*words, "--broker", broker])


def _create_group(having: Mapping[str, GroupDescription], broker: str) -> str:
    group = next(iter(having.values()))
    plain = replace(group.settings, orderly=False)
    if plain not in (GroupSettings(), GroupSettings(backoff_ms=BACKOFF_MS_DEFAULT)):
        name = join([group.group])
        return f"trovemq export --group {name} > group.yaml, then: trovemq apply group.yaml --broker {broker}"
    words = ["trovemq", "group", "create", group.group, *(["--orderly"] if group.settings.orderly else [])]
    return join([*words, "--broker", broker])


def _topic_text(topic: TopicDescription) -> str:
    options = "".join(f", {name} {value}" for name, value in sorted(topic.options.items()))
    return f"{topic.queue_count} queues, {topic.message_type}{options}"


def _listed(said: Mapping[str, str]) -> str:
    return "; ".join(f"{text} on {broker}" for broker, text in said.items())
