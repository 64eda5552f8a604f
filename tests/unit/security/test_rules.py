"""The decision about access against a plain model of it."""

from __future__ import annotations

import ipaddress
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trovemq_broker.security.actions import (
    ALL_ACTIONS,
    Action,
    Form,
    Kind,
    Pattern,
    Resource,
    action_text,
    parse_actions,
)
from trovemq_broker.security.rules import Decision, Rule, SubjectRules, decide, make_rule
from trovemq_proto.errors import TroveError

NAMES = ("a", "ab", "abc", "eu%a", "eu%ab", "%RETRY%eu%a", "%DLQ%g")
SOURCES = ("", "127.0.0.1", "10.1.2.3", "10.200.0.1", "::ffff:10.1.2.3", "fd00::1")
NETWORKS = ("10.0.0.0/8", "10.1.0.0/16", "127.0.0.1/32", "fd00::/8")

actions = st.integers(1, int(ALL_ACTIONS)).map(Action)
patterns = st.one_of(
    st.just(Pattern(None, Form.ANY)),
    st.builds(Pattern, st.sampled_from(Kind), st.just(Form.ANY)),
    st.builds(
        Pattern, st.sampled_from(Kind), st.sampled_from((Form.EXACT, Form.PREFIX)), st.sampled_from(NAMES)
    ),
    st.builds(Pattern, st.just(Kind.NAMESPACE), st.just(Form.EXACT), st.just("eu")),
)
networks = st.lists(st.sampled_from(NETWORKS).map(ipaddress.ip_network), max_size=2).map(tuple)
resources = st.builds(Resource, st.sampled_from(Kind), st.sampled_from(NAMES))
DENIED_BY_A_SHORTER_PREFIX = [
    Rule(1, "alice", False, Action.READ, Pattern(Kind.TOPIC, Form.PREFIX, "a")),
    Rule(2, "alice", True, Action.READ, Pattern(Kind.TOPIC, Form.PREFIX, "ab")),
]


@st.composite
def rule_lists(draw: st.DrawFn) -> list[Rule]:
    made = st.tuples(st.booleans(), actions, patterns, networks)
    drawn = draw(st.lists(made, max_size=6))
    return [Rule(number, "alice", *parts) for number, parts in enumerate(drawn, 1)]


def plain_matches(pattern: Pattern, resource: Resource) -> bool:
    text = str(pattern)
    if text == "*":
        return True
    kind, _, name = text.partition(":")
    value = resource.name
    if kind == "Namespace" and resource.kind in (Kind.TOPIC, Kind.GROUP):
        value = value.removeprefix("%RETRY%").removeprefix("%DLQ%")
        value = value.split("%")[0] if "%" in value else ""
    elif kind != resource.kind:
        return False
    return value.startswith(name[:-1]) if name.endswith("*") else value == name


def plain_source(rule: Rule, source: str) -> bool:
    if not rule.sources:
        return True
    if not source:
        return False
    address = ipaddress.ip_address(source.removeprefix("::ffff:"))
    return any(address in network for network in rule.sources)


def plain_allowed(rules: list[Rule], resource: Resource, wanted: Action, source: str) -> bool:
    """One of the wanted actions is allowed by a rule and denied by none."""
    matching = [
        rule for rule in rules if plain_matches(rule.pattern, resource) and plain_source(rule, source)
    ]
    return any(
        any(rule.allow and one in rule.actions for rule in matching)
        and not any(not rule.allow and one in rule.actions for rule in matching)
        for one in Action
        if one in wanted
    )


@example(DENIED_BY_A_SHORTER_PREFIX, Resource(Kind.TOPIC, "abc"), Action.READ, "")
@given(rule_lists(), resources, actions, st.sampled_from(SOURCES))
def test_the_decision_is_that_of_a_plain_model(
    rules: list[Rule], resource: Resource, wanted: Action, source: str
) -> None:
    expected = plain_allowed(rules, resource, wanted, source)
    subject = SubjectRules(rules)
    assert decide(rules, resource, wanted, source).allowed == expected
    assert subject.allowed(resource, wanted, source) == expected
    assert subject.allowed(resource, wanted, source) == expected, "remembered"


@given(rule_lists(), resources, actions, st.sampled_from(SOURCES))
def test_the_order_of_rules_is_of_no_meaning(
    rules: list[Rule], resource: Resource, wanted: Action, source: str
) -> None:
    decisions = {decide(order, resource, wanted, source) for order in permutations(rules[:4])}
    assert len(decisions) == 1


@given(rule_lists(), resources, actions, st.sampled_from(SOURCES))
def test_the_decision_is_that_of_its_rule(
    rules: list[Rule], resource: Resource, wanted: Action, source: str
) -> None:
    decision = decide(rules, resource, wanted, source)
    if decision.rule is None:
        assert not decision.allowed
        return
    assert decision.rule.allow == decision.allowed
    assert decision.rule.actions & wanted
    assert plain_matches(decision.rule.pattern, resource)
    assert plain_source(decision.rule, source)


@given(rule_lists(), resources, st.sampled_from(Action), st.sampled_from(SOURCES))
def test_a_matching_deny_wins_over_every_allow(
    rules: list[Rule], resource: Resource, wanted: Action, source: str
) -> None:
    deny = Rule(99, "alice", False, wanted, Pattern(None, Form.ANY))
    assert decide([*rules, deny], resource, wanted, source).allowed is False
    assert SubjectRules([deny, *rules]).allowed(resource, wanted, source) is False


def test_without_a_rule_nothing_is_allowed() -> None:
    assert decide([], Resource(Kind.TOPIC, "a"), ALL_ACTIONS, "127.0.0.1") == Decision(False)


def test_many_names_do_not_grow_the_cache() -> None:
    subject = SubjectRules([make_rule(1, "alice", allow=True, actions="Pub", resource="Topic:a*")])
    for number in range(20_000):
        subject.allowed(Resource(Kind.TOPIC, f"x{number}"), Action.PUB, "10.0.0.1")
    assert len(subject._answers) <= 8_192


def test_a_first_check_cost_as_much_as_there_were_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"Topic:t{number:03}*" for number in range(500)] + [f"Topic:u{number}" for number in range(499)]
    rules = [
        make_rule(number, "alice", allow=True, actions="Pub", resource=text)
        for number, text in enumerate(texts, 1)
    ]
    subject = SubjectRules(
        [*rules, make_rule(1_000, "alice", allow=False, actions="All", resource="Topic:t4*")]
    )
    looked_at: list[object] = []
    matches = Pattern.matches

    def counted(self: Pattern, resource: Resource) -> bool:
        looked_at.append(self)
        return matches(self, resource)

    monkeypatch.setattr(Pattern, "matches", counted)
    answers = {
        name: subject.allowed(Resource(Kind.TOPIC, name), Action.PUB, "10.0.0.1")
        for name in ("t123-x", "u7", "t412-x", "v", "t")
    }
    assert answers == {"t123-x": True, "u7": True, "t412-x": False, "v": False, "t": False}
    assert len(looked_at) < 10


@given(patterns)
def test_a_pattern_is_read_as_it_is_written(pattern: Pattern) -> None:
    assert Pattern.parse(str(pattern)) == pattern


@given(actions)
def test_actions_are_read_as_they_are_written(given_actions: Action) -> None:
    assert parse_actions(action_text(given_actions)) == given_actions


@pytest.mark.parametrize(
    "resource",
    ["", "orders", "Topic:", "Queue:a", "Topic:a*b", "Topic:a b", "Topic:../x", "**", "Topic:" + "a" * 256],
)
def test_a_resource_that_cannot_be_read_is_refused(resource: str) -> None:
    with pytest.raises(TroveError, match="RULE_ILLEGAL"):
        make_rule(1, "alice", allow=True, actions="Pub", resource=resource)


@pytest.mark.parametrize("text", ["", "Publish", "Pub,,Sub", "Pub;Sub"])
def test_an_unknown_action_is_refused(text: str) -> None:
    with pytest.raises(TroveError, match="RULE_ILLEGAL"):
        parse_actions(text)


@pytest.mark.parametrize("source", ["", "10.0.0.1/8", "localhost", "10.0.0.0/33", "1.2.3"])
def test_a_source_that_is_not_a_network_is_refused(source: str) -> None:
    with pytest.raises(TroveError, match="RULE_ILLEGAL"):
        make_rule(1, "alice", allow=True, actions="Pub", resource="*", sources=[source])


def test_a_prefix_did_not_match_the_name_that_is_just_the_prefix() -> None:
    subject = SubjectRules([make_rule(1, "alice", allow=True, actions="Pub", resource="Topic:orders*")])
    for name, expected in (("order", False), ("orders", True), ("orders-eu", True)):
        assert subject.allowed(Resource(Kind.TOPIC, name), Action.PUB, "10.0.0.1") == expected


def test_a_rule_for_one_network_was_remembered_for_every_address() -> None:
    rule = make_rule(1, "alice", allow=True, actions="Pub", resource="*", sources=["10.0.0.0/8"])
    subject = SubjectRules([rule])
    answers = [
        subject.allowed(Resource(Kind.TOPIC, "a"), Action.PUB, source)
        for source in ("10.1.2.3", "192.0.2.1", "10.1.2.3", "")
    ]
    assert answers == [True, False, True, False]


def test_a_look_up_of_all_topics_ignored_the_deny_of_a_namespace() -> None:
    rules = [
        make_rule(1, "alice", allow=True, actions="Read", resource="*"),
        make_rule(2, "alice", allow=False, actions="Read", resource="Namespace:eu"),
    ]
    subject = SubjectRules(rules)
    assert not subject.allowed_everywhere(Kind.TOPIC, Action.READ, "10.0.0.1")
    assert subject.allowed_everywhere(Kind.CLUSTER, Action.READ, "10.0.0.1")
