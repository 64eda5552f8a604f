"""Problems of the cluster's configuration on its brokers, each with the command that mends it: for the
command line, `doctor` and the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import join
from typing import Final

from trovemq.models.config import OLDER, ConfigName, ConfigStatus

FOLLOWS: Final = "set config_owner={0} on it, and restart it"
TAKE_OVER: Final = "if {0} does not come back: trovemq cluster config-owner NAME"


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Something that an operator should mend. `what` and `to_do` are for people."""

    broker: str
    kind: str
    """`cluster`, `broker`, or of an entry the name of its list: `unlisted` and so on."""
    what: str
    to_do: str
    entry: ConfigName | None = None


def newest(statuses: Sequence[ConfigStatus]) -> ConfigStatus | None:
    """The copy that is highest, that of an owner before an equal one; None if no broker has a table."""
    having = [one for one in statuses if one.has_table]
    return max(having, key=lambda one: (one.generation, one.version, one.is_owner), default=None)


def lacked_versions(status: ConfigStatus, statuses: Sequence[ConfigStatus]) -> int | None:
    """How many versions a broker lacks of the newest copy of its cluster; None if it has none."""
    if not status.has_table:
        return None
    same = [one for one in statuses if one.cluster == status.cluster]
    best = newest(same)
    return max(best.version - status.version, 0) if best is not None else None


def unanswering(statuses: Sequence[ConfigStatus], missing: Sequence[str]) -> list[str]:
    """The brokers of the cluster that did not answer: those of the routes, and those that a copy names."""
    answered = {one.broker for one in statuses}
    known = {member.broker for one in statuses for member in one.members} | {*missing}
    return sorted(known - answered)


def problems_of(statuses: Sequence[ConfigStatus]) -> Iterator[ConfigProblem]:
    """Of the whole cluster first, then of each broker."""
    best = newest(statuses)
    if best is None:
        return
    yield from _of_cluster(statuses, best)
    owner_answers = any(one.broker == best.owner for one in statuses)
    for status in statuses:
        if status.has_table and status.cluster != best.cluster:
            yield from _of_broker(status, status)  # its owner is another one
        elif status.state != "stored" or owner_answers:  # else one finding says it for all
            yield from _of_broker(status, best)
        else:
            yield from _of_entries(status)


def _of_cluster(statuses: Sequence[ConfigStatus], best: ConfigStatus) -> Iterator[ConfigProblem]:
    having = [one for one in statuses if one.has_table]
    by_cluster: dict[str, list[str]] = {}
    for one in having:
        by_cluster.setdefault(one.cluster, []).append(one.broker)
    names = ", ".join(one.broker for one in having)
    if len(by_cluster) > 1:
        said = "; ".join(f"{cluster} on {', '.join(brokers)}" for cluster, brokers in by_cluster.items())
        to_do = f"name the one that stays: trovemq cluster config-owner NAME --cluster {best.cluster}"
        what = f"the brokers have the configurations of {len(by_cluster)} clusters: {said}"
        yield ConfigProblem(names, "cluster", what, to_do)
        return
    owners = [one for one in having if one.is_owner]
    if len({one.generation for one in owners}) > 1:
        said = ", ".join(f"{one.broker} (generation {one.generation})" for one in owners)
        to_do = f"wait until the others follow {best.owner}; if they do not, look in their logs for config."
        yield ConfigProblem(names, "cluster", f"several brokers own the configuration: {said}", to_do)
    answered = {one.broker for one in statuses}
    if not owners and best.owner not in answered:
        what = f"{best.owner}, which owns the configuration, does not answer: nothing of it can be changed"
        yield ConfigProblem(best.owner, "cluster", what, f"start {best.owner}; {TAKE_OVER.format('it')}")
    elif not owners and not any(one.state == "contradicted" for one in having):
        what = "no broker owns the configuration: a take-over ended half-way"
        yield ConfigProblem(best.owner, "cluster", what, "repeat: trovemq cluster config-owner NAME")


def _of_broker(status: ConfigStatus, best: ConfigStatus) -> Iterator[ConfigProblem]:
    if what := _trouble(status, best):
        yield ConfigProblem(status.broker, "broker", *what)
    yield from _of_entries(status)


def _of_entries(status: ConfigStatus) -> Iterator[ConfigProblem]:
    for kind, entries in status.lists():
        for one in entries:
            why = f" ({one.message})" if one.message and kind != "differing" else ""  # it says the same
            text = f"{one.kind} {one.name}{_WHAT[kind]}{why}"
            yield ConfigProblem(status.broker, kind, text, mend(status.broker, kind, one), one)


def _trouble(status: ConfigStatus, best: ConfigStatus) -> tuple[str, str] | None:
    """The problem of the broker's copy as a whole, and what to do."""
    said = f": {status.problem}" if status.problem else ""
    match status.state:
        case "alone":
            return "it has its own configuration beside others that share one", FOLLOWS.format(best.owner)
        case "superseded":
            to_do = f"it follows {best.owner} soon; if it does not, look in its log for config."
            return f"another broker has taken over from it{said}", to_do
        case "contradicted":
            what = f"its store was put back from an older copy, so it changes nothing{said}"
            return what, "name the copy that continues: trovemq cluster config-owner NAME --source BROKER"
        case "joining" | "waiting":
            what = f"it waits for the owner {best.owner}, and serves no messages yet{said}"
            return what, f"start {best.owner}; {TAKE_OVER.format('it')}"
        case "stored":
            what = f"it serves by its stored table, because it does not reach the owner {best.owner}{said}"
            return (
                what,
                f"call again soon; then look in its log for config., and at the network to {best.owner}",
            )
        case "removed":
            what = f"it was removed from the cluster, and serves no messages{said}"
            return what, "stop it; a broker with an empty store joins as a new one"
        case state if state == OLDER:
            return "it is older than this command", "upgrade it"
    return (status.problem, "see docs/how-to/one-configuration.md") if status.problem else None


_WHAT: Final = {
    "unlisted": " is on it, and not in the cluster's configuration",
    "differing": " has other settings on it than in the cluster's configuration",
    "withheld": " was deleted while it was away: it is kept on its disk, and not served",
    "dropped": ": a take-over has dropped this change",
    "failed": " could not be made on it yet",
}
_EXPORTED: Final = ("topic", "group", "user")


def mend(broker: str, kind: str, entry: ConfigName) -> str:
    """The command that mends an entry of one of the lists of a broker."""
    if kind == "failed":
        return "correct the reason; the broker tries again every minute"
    if kind == "withheld":
        made = join(["trovemq", entry.kind, "create", entry.name])
        gone = join(["trovemq", entry.kind, "delete", entry.name, "--yes"])
        return f"to free its disk: {made}, then: {gone}"
    if entry.kind == "topic" and kind in ("unlisted", "differing"):
        adopt, alter = (join(["trovemq", "topic", verb, entry.name]) for verb in ("adopt", "alter"))
        more = f"; first, where type or options differ: {alter}" if kind == "differing" else ""
        return f"to take it in, with its queues: {adopt}{more}"
    if entry.kind in _EXPORTED:
        export = join(["trovemq", "export", f"--{entry.kind}", entry.name, "--broker", broker])
        takes = "to take it in" if kind == "unlisted" else f"to take the one of {broker} for all"
        if kind == "dropped":
            takes = "to make it again, if it is still there"
            export = f"{export} > one.yaml, then: trovemq apply one.yaml"
            return f"{takes}: {export}; then: trovemq cluster config --clear-dropped"
        return f"{takes}: {export} > one.yaml, then: trovemq apply one.yaml"
    verbs = {"rule": "acl list", "quota": "quota list"}
    listed = verbs.get(entry.kind, "cluster config")
    return f"compare: trovemq {listed} --broker {broker}; then change it in the cluster's configuration"
