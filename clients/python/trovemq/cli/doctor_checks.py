"""The possible faults of a cluster. Each check looks at the evidence and yields its findings.

A problem needs action; a note is only information.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, islice
from typing import Final

from trovemq.cli.config_problems import newest, problems_of
from trovemq.cli.doctor_counters import counters
from trovemq.cli.doctor_evidence import BrokerEvidence, Evidence, Finding
from trovemq.cli.doctor_spread import NAMED_MAX, balance, group_spread, topic_spread
from trovemq.cli.times import duration_text
from trovemq.models.broker import BrokerCondition
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.interpreter import REMEDY, UNOPTIMISED

CLOCK_DIFFERENCE_MAX_MS: Final = 2_000
DISK_MARGIN_PERCENT: Final = 5.0
OPEN_FILES_SHARE_MAX: Final = 0.8
OPEN_FILES_MIN: Final = 4_096
LAG_OLD_MS: Final = 60_000
SAME_EVERYWHERE: Final = ("cluster", "flush_mode", "body_size_max", "authentication_enable")


def reachable(evidence: Evidence) -> Iterator[Finding]:
    """The server answers, and so does each broker in its routes."""
    if evidence.failure is not None:
        yield _of_failure("reachable", evidence.server, evidence.failure)
    elif not evidence.brokers:
        to_do = "start a broker with --nameserver; if one runs, look in its log for nameserver.unreachable"
        yield Finding("reachable", evidence.server, "there is no broker in the routes", to_do)
    for broker in evidence.brokers:
        if broker.failure is not None:
            where = f"{broker.info.name} at {broker.info.address}"
            yield _of_failure("reachable", where, broker.failure)


def lost(evidence: Evidence) -> Iterator[Finding]:
    """No broker left the routes without a stop."""
    for one in evidence.lost:
        what = f"it left the routes {duration_text(one.lost_ms)} ago without a regular stop"
        if one.topics_alone:
            what += f"; {one.topics_alone} of its {one.topics} topics are on no other broker"
        to_do = "start it again; if it runs, look in its log for nameserver.unreachable"
        to_do += f"; if it does not come back: trovemq broker remove {one.name} --accept-loss"
        yield Finding("lost", f"{one.name} at {one.address}", what, to_do)


def _of_failure(check: str, where: str, failure: TroveError) -> Finding:
    if failure.fields.get("grpc_status") == "UNIMPLEMENTED":
        return Finding(check, where, "the broker is older than this command line", "upgrade it", note=True)
    if failure.spec is errors.ACCESS_DENIED:
        return Finding(check, where, failure.message, "allow the user Get of the cluster: trovemq acl allow")
    return Finding(check, where, f"{failure.symbol}: {failure.message}", failure.spec.what_to_do)


def ready(evidence: Evidence) -> Iterator[Finding]:
    """Each broker is ready and has no warning."""
    page = "docs/how-to/run-in-production.md explains each reason"
    for broker, condition in _conditions(evidence):
        for text in condition.reasons:
            if not (evidence.configs and text.startswith("configuration:")):  # the check of that name says it
                yield Finding("ready", broker.info.name, f"not ready: {text}", page)
        for text in condition.warnings:
            if not text.startswith(("drain:", "configuration:") if evidence.configs else "drain:"):
                yield Finding("ready", broker.info.name, text, page)


def drained(evidence: Evidence) -> Iterator[Finding]:
    """No broker is drained."""
    for broker, condition in _conditions(evidence):
        if condition.drain != "serving":
            to_do = f"restart it, or: trovemq broker drain {broker.info.name} --undo"
            yield Finding("drained", broker.info.name, f"it is {condition.drain}", to_do, note=True)


def clocks(evidence: Evidence) -> Iterator[Finding]:
    """Brokers and this machine have the same time."""
    for broker, condition in _conditions(evidence):
        ahead_ms = condition.now - (broker.asked + broker.answered) / 2
        unsure_ms = (broker.answered - broker.asked) / 2
        if abs(ahead_ms) - unsure_ms > CLOCK_DIFFERENCE_MAX_MS:
            word = "fast" if ahead_ms > 0 else "slow"
            what = f"its clock is {abs(ahead_ms) / 1000:.1f} s {word} against this machine's"
            yield Finding("clocks", broker.info.name, what, "run a time service (chrony, ntpd) on both")


def disks(evidence: Evidence) -> Iterator[Finding]:
    """No disk is near the limit from which new messages are refused."""
    for broker, condition in _conditions(evidence):
        limit = _number(broker, "disk_warning_percent")
        used = f"{condition.disk_used_percent:.1f} % of the disk is used"
        to_do = "free space, or keep messages for less long: trovemq config set reserved_time_ms"
        if condition.disk_full:
            yield Finding("disks", broker.info.name, f"{used}, and new messages are refused", to_do)
        elif limit and condition.disk_used_percent >= limit - DISK_MARGIN_PERCENT:
            yield Finding(
                "disks", broker.info.name, f"{used}; new messages are refused from {limit} % on", to_do
            )


def open_files(evidence: Evidence) -> Iterator[Finding]:
    """There is space for more files and connections."""
    for broker, condition in _conditions(evidence):
        most, now = condition.open_files_max, condition.open_files
        to_do = "raise the limit: LimitNOFILE= of the unit, ulimit -n of the shell"
        if now > most * OPEN_FILES_SHARE_MAX:
            yield Finding("open_files", broker.info.name, f"{now} of {most} files are open", to_do)
        elif 0 < most < OPEN_FILES_MIN:
            yield Finding(
                "open_files", broker.info.name, f"at most {most} files may be open", to_do, note=True
            )


def store_mode(evidence: Evidence) -> Iterator[Finding]:
    """Other users of the machine cannot read the store."""
    for broker, condition in _conditions(evidence):
        if condition.store_mode & 0o077:
            what = f"other users of its machine can read the store (mode {condition.store_mode:o})"
            yield Finding("store_mode", broker.info.name, what, "chmod 700 the store's directory")


def exposure(evidence: Evidence) -> Iterator[Finding]:
    """Nothing is open to other machines without authentication or without TLS."""
    for broker, condition in _conditions(evidence):
        if condition.plain_exposed and not condition.authentication:
            what = f"{condition.plain_exposed} is open to other machines without authentication"
            to_do = "set authentication_enable and TLS, or listen on loopback"
            yield Finding("exposure", broker.info.name, what, to_do)
        elif condition.plain_exposed:
            what = f"{condition.plain_exposed} is open to other machines without TLS: bodies can be read"
            yield Finding("exposure", broker.info.name, what, "set tls_listen, and listen on loopback")
        if condition.http_exposed:
            what = f"/metrics is open to other machines at {condition.http_exposed} without TLS"
            to_do = "set http_tls, or let only Prometheus reach the address"
            yield Finding("exposure", broker.info.name, what, to_do, note=True)


def versions(evidence: Evidence) -> Iterator[Finding]:
    """All brokers and this command line have the same version."""
    for broker in evidence.brokers:
        if broker.info.version and broker.info.version != evidence.version:
            what = f"it is {broker.info.version}, this command line is {evidence.version}"
            yield Finding("versions", broker.info.name, what, "upgrade the older one", note=True)


def interpreters(evidence: Evidence) -> Iterator[Finding]:
    """Each broker's Python was built with optimisation."""
    for broker, condition in _conditions(evidence):
        if condition.interpreter.endswith(UNOPTIMISED):
            what = f"it runs on {condition.interpreter}: 1.2 to 1.6 times the processor time for a message"
            yield Finding("interpreters", broker.info.name, what, REMEDY, note=True)


def kept_settings(evidence: Evidence) -> Iterator[Finding]:
    """No setting would change by a restart."""
    for broker in evidence.brokers:
        for one in broker.settings.values():
            if one.value != one.started_with:
                what = f"{one.name} is {one.value}, and {one.started_with} after a restart"
                to_do = "write it into the broker's configuration"
                yield Finding("kept_settings", broker.info.name, what, to_do, note=True)


def same_settings(evidence: Evidence) -> Iterator[Finding]:
    """Settings that clients notice are the same on all brokers."""
    for name in SAME_EVERYWHERE:
        values = {b.info.name: b.settings[name].value for b in evidence.brokers if name in b.settings}
        if len(set(values.values())) > 1:
            what = f"{name} differs: {', '.join(f'{value} on {broker}' for broker, value in values.items())}"
            yield Finding("same_settings", ", ".join(values), what, "set the same value on each, and restart")


def groups(evidence: Evidence) -> Iterator[Finding]:
    """Each group with messages that wait has members, and they keep up."""
    for group in evidence.groups:
        if group.lag and not group.members:
            waiting = "1 message waits" if group.lag == 1 else f"{group.lag:,} messages wait"
            what = f"{waiting}, and the group has no member"
            to_do = f"start its consumers, or: trovemq group delete {group.group}"
            yield Finding("groups", group.group, what, to_do)
        elif group.lag > group.lag_before and group.oldest_ms >= LAG_OLD_MS:
            age = f"the oldest for {group.oldest_ms / 1000:.0f} s"
            what = f"{group.lag:,} messages wait, {age}, and they become more"
            to_do = f"add members, or look at one: trovemq group members {group.group}"
            yield Finding("groups", group.group, what, to_do)


def configuration(evidence: Evidence) -> Iterator[Finding]:
    """The brokers that share a configuration have the same one, and its owner is there."""
    for (broker, kind), same in groupby(
        problems_of(evidence.configs), key=lambda one: (one.broker, one.kind)
    ):
        is_note = kind in ("withheld", "unlisted")
        for one in islice(same, NAMED_MAX):
            yield Finding("configuration", broker, one.what, one.to_do, note=is_note)
        if more := sum(1 for _ in same):
            what = f"{more:,} more of it are {kind}"
            yield Finding(
                "configuration", broker, what, "see all: trovemq cluster config --json", note=is_note
            )
    yield from _behind(evidence)
    yield from _stopped(evidence)


def _stopped(evidence: Evidence) -> Iterator[Finding]:
    """Members of the cluster that were stopped in order, and so are in no routes."""
    shown = {one.info.name for one in evidence.brokers} | {one.name for one in evidence.lost}
    for owner in evidence.configs:
        for member in owner.members:
            if not member.live and member.broker not in shown:
                what = "it was stopped, and belongs to the cluster: FIFO topics that lie on it wait for it"
                remove = f"trovemq broker remove {member.broker} --accept-loss"
                to_do = f"start it; if it does not come back: {remove}"
                yield Finding("configuration", member.broker, what, to_do, note=True)


def _behind(evidence: Evidence) -> Iterator[Finding]:
    """Followers that lack a change that was there at the first call."""
    best = newest(evidence.configs_before)
    if best is None:
        return
    for one in evidence.configs:
        is_older = (one.generation, one.version) < (best.generation, best.version)
        if one.state == "current" and one.cluster == best.cluster and is_older:
            what = f"it has version {one.version} of the configuration, and {best.broker} has {best.version}"
            to_do = "look at its disk, and in its log for config."
            yield Finding("configuration", one.broker, what, to_do)


CHECKS: Final[Mapping[str, Callable[[Evidence], Iterator[Finding]]]] = {
    check.__name__: check
    for check in (
        reachable,
        lost,
        ready,
        drained,
        clocks,
        disks,
        counters,
        open_files,
        store_mode,
        exposure,
        versions,
        interpreters,
        kept_settings,
        same_settings,
        groups,
        configuration,
        topic_spread,
        group_spread,
        balance,
    )
}


def findings(evidence: Evidence) -> list[Finding]:
    """The findings of all checks, problems first."""
    found = [finding for check in CHECKS.values() for finding in check(evidence)]
    return sorted(found, key=lambda finding: finding.note)


def _conditions(evidence: Evidence) -> Iterator[tuple[BrokerEvidence, BrokerCondition]]:
    for broker in evidence.brokers:
        if broker.condition is not None:
            yield broker, broker.condition


def _number(broker: BrokerEvidence, name: str) -> int:
    setting = broker.settings.get(name)
    return int(setting.value) if setting is not None and setting.value.isdecimal() else 0
