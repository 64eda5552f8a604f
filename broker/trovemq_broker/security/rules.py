"""Rules of access and the decision.

A rule allows or denies a subject some actions on the resources of a pattern, from everywhere or from some
networks. A call is allowed if one of its sufficient actions is allowed by a rule and denied by none. The
order of rules has no meaning, and nothing overrides a deny. (In RocketMQ the most specific pattern wins.) A
call is denied if no rule matches.

Invariant: `SubjectRules.allowed` returns the same as `decide(…).allowed`, with a cache of earlier answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from trovemq_broker.security.actions import Action, Form, Kind, Pattern, Resource, action_text, parse_actions
from trovemq_daemon.peers import parse_source
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ANSWERS_MAX: Final = 8_192  # the most cached answers for one subject
SOURCES_MAX: Final = 64  # the most networks of one rule

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of access. `subject`: an access key. `sources` empty: from everywhere."""

    number: int
    subject: str
    allow: bool
    actions: Action
    pattern: Pattern
    sources: tuple[Network, ...] = ()

    def __str__(self) -> str:
        origin = f" from {' '.join(map(str, self.sources))}" if self.sources else ""
        decision = "allow" if self.allow else "deny"
        actions = action_text(self.actions)
        return f"rule {self.number}: {decision} {actions} on {self.pattern} to User:{self.subject}{origin}"

    def matches_source(self, source: str) -> bool:
        """`source`: an IP address; "" (a Unix socket) is in no network."""
        if not self.sources:
            return True
        address = parse_source(source)
        if address is not None:
            for network in self.sources:  # any() takes more than twice as long
                if address in network:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision. `rule`: the deciding rule; None if no rule matched."""

    allowed: bool
    rule: Rule | None = None


def decide(rules: Iterable[Rule], resource: Resource, wanted: Action, source: str) -> Decision:
    """Whether the subject of these rules may do one of the wanted actions, and the deciding rule: of several
    the one with the lowest number."""
    matching = sorted(
        (
            rule
            for rule in rules
            if rule.actions & wanted and rule.pattern.matches(resource) and rule.matches_source(source)
        ),
        key=lambda rule: rule.number,
    )
    denied = Action(0)
    for rule in matching:
        if not rule.allow:
            denied |= rule.actions
    for rule in matching:
        if rule.allow and rule.actions & wanted & ~denied:
            return Decision(True, rule)
    return Decision(False, next((rule for rule in matching if not rule.allow), None))


@dataclass(slots=True)
class _Actions:
    """The rules of one pattern: the actions of rules without sources, and the rules with sources."""

    allowed: int = 0
    denied: int = 0
    by_source: list[Rule] = field(default_factory=list)

    def add(self, rule: Rule) -> None:
        if rule.sources:
            self.by_source.append(rule)
        elif rule.allow:
            self.allowed |= int(rule.actions)
        else:
            self.denied |= int(rule.actions)


class _Names:
    """Rules by the name or prefix in their patterns. The cost of a look-up depends on the number of different
    prefix lengths, not on the number of rules."""

    __slots__ = ("_by_name", "_by_prefix", "_every", "_lengths")

    def __init__(self) -> None:
        self._every = _Actions()
        self._by_name: dict[str, _Actions] = {}
        self._by_prefix: dict[str, _Actions] = {}
        self._lengths: list[int] = []

    def add(self, rule: Rule) -> None:
        pattern = rule.pattern
        if pattern.form is Form.ANY:
            self._every.add(rule)
        elif pattern.form is Form.EXACT:
            self._by_name.setdefault(pattern.name, _Actions()).add(rule)
        else:
            self._by_prefix.setdefault(pattern.name, _Actions()).add(rule)
            self._lengths = sorted({len(prefix) for prefix in self._by_prefix})

    def find(self, name: str, found: list[_Actions]) -> None:
        """Adds the actions of every pattern that matches the name."""
        found.append(self._every)
        exact = self._by_name.get(name)
        if exact is not None:
            found.append(exact)
        for length in self._lengths:
            if length > len(name):
                return
            prefixed = self._by_prefix.get(name[:length])
            if prefixed is not None:
                found.append(prefixed)


class SubjectRules:
    """The rules of one subject, indexed for fast look-ups. Immutable: a change creates another object."""

    __slots__ = ("_answers", "_by_kind", "_by_namespace", "_by_source", "_everything", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: Final = tuple(sorted(rules, key=lambda rule: rule.number))
        self._by_source = any(rule.sources for rule in self.rules)
        self._by_namespace = any(rule.pattern.kind is Kind.NAMESPACE for rule in self.rules)
        self._everything = _Actions()
        self._by_kind = {kind: _Names() for kind in Kind}
        for rule in self.rules:
            kind = rule.pattern.kind
            (self._everything if kind is None else self._by_kind[kind]).add(rule)
        self._answers: dict[tuple[Kind, str, str], int] = {}

    def allowed(self, resource: Resource, wanted: Action, source: str) -> bool:
        """Whether one of the wanted actions may be done."""
        key = (resource[0], resource[1], source if self._by_source else "")
        actions = self._answers.get(key)
        if actions is None:
            actions = self._look_up(resource, source)
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = actions
        return actions & int(wanted) != 0

    def allowed_everywhere(self, kind: Kind, wanted: Action, source: str) -> bool:
        """Whether one of the wanted actions may be done on every resource of the kind: a rule for all of them
        allows it, and no rule denies it for any."""
        allowed = denied = 0
        for rule in self.rules:
            pattern = rule.pattern
            own = pattern.kind is None or pattern.kind is kind
            if not rule.matches_source(source):
                continue
            if rule.allow:
                allowed |= int(rule.actions) if own and pattern.form is Form.ANY else 0
            elif own or (pattern.kind is Kind.NAMESPACE and kind in (Kind.TOPIC, Kind.GROUP)):
                denied |= int(rule.actions)
        return allowed & ~denied & int(wanted) != 0

    def _look_up(self, resource: Resource, source: str) -> int:
        found = [self._everything]
        self._by_kind[resource.kind].find(resource.name, found)
        if self._by_namespace and (resource.kind is Kind.TOPIC or resource.kind is Kind.GROUP):
            self._by_kind[Kind.NAMESPACE].find(resource.namespace or "", found)
        allowed = denied = 0
        for actions in found:
            allowed |= actions.allowed
            denied |= actions.denied
            for rule in actions.by_source:
                if rule.matches_source(source):
                    if rule.allow:
                        allowed |= int(rule.actions)
                    else:
                        denied |= int(rule.actions)
        return allowed & ~denied


def parse_sources(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parses networks or single addresses. TroveError RULE_ILLEGAL."""
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip()))
        except ValueError as error:
            what = f"source {text.strip()[:60]!a} is not an address or a network (10.0.0.0/8): {error}"
            raise TroveError(errors.RULE_ILLEGAL, what) from None
    if len(networks) > SOURCES_MAX:
        raise TroveError(errors.RULE_ILLEGAL, f"{len(networks)} sources; a rule has at most {SOURCES_MAX}")
    return tuple(dict.fromkeys(networks))


def make_rule(
    number: int, subject: str, *, allow: bool, actions: str, resource: str, sources: Iterable[str] = ()
) -> Rule:
    """Makes a rule of texts. TroveError RULE_ILLEGAL."""
    return Rule(
        number, subject, allow, parse_actions(actions), Pattern.parse(resource), parse_sources(sources)
    )
