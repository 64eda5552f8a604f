"""Strategies for the values that the cluster's configuration has as texts."""

from __future__ import annotations

from hypothesis import strategies as st

from trovemq_broker.admin.config_texts import topic_of
from trovemq_broker.security.quotas import LIMIT_MAX, LIMITS, Quota
from trovemq_broker.security.rules import make_rule
from trovemq_daemon.users import Secret, User, UserKind
from trovemq_proto.authentication.scram import Verifier
from trovemq_store.topics.retry_policy import RetryPolicy
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.topics import MESSAGE_TYPES, TopicConfig

NAMES = st.from_regex(r"[a-zA-Z0-9_.@-]{1,20}", fullmatch=True)
TIMES = st.builds("{}{}".format, st.integers(1, 300), st.sampled_from(["s", "m", "h", "d"]))
DELAYS = st.integers(0, 43_200_000)


@st.composite
def topic_configs(draw: st.DrawFn) -> TopicConfig:
    options = {
        "deduplicate": draw(st.one_of(st.just("off"), TIMES)),
        "order": draw(st.sampled_from(["log", "priority"])),
        "indexed_properties": draw(st.sampled_from(["off", "a", " a , b b", "b,a"])),
    }
    if draw(st.booleans()):
        options |= {"retention": "until_acknowledged", "retention_age_max": draw(TIMES)}
    type_ = draw(st.sampled_from([one for one in MESSAGE_TYPES if one != "FIFO"]))
    settings = {"message_type": type_, "perm": str(draw(st.integers(0, 15))), "creator": draw(NAMES)}
    return topic_of("T", {**settings, **options}, draw(st.integers(1, 1024)))


POLICIES = st.one_of(
    st.builds(RetryPolicy, next_ms=st.lists(DELAYS, min_size=1, max_size=64).map(tuple)),
    st.builds(
        RetryPolicy,
        st.just("exponential"),
        initial_ms=DELAYS,
        max_ms=DELAYS,
        multiplier=st.floats(1, 100),
    ),
)
GROUPS = st.builds(
    SubscriptionGroup,
    st.just("G"),
    orderly=st.booleans(),
    retry_max=st.integers(-1, 10_000),
    retry_policy=POLICIES,
    consume_enable=st.booleans(),
    consume_from_min=st.booleans(),
    broadcast_enable=st.booleans(),
    attributes=st.one_of(st.just({}), NAMES.map(lambda name: {"trovemq.creator": name})),
)
SECRETS = st.builds(
    Secret,
    st.from_regex(rb"[!-~]{8,40}", fullmatch=True),
    st.builds(Verifier, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)),
    st.integers(0, 1 << 45),
)
USERS = st.builds(
    User,
    NAMES,
    st.sampled_from(list(UserKind)),
    st.lists(SECRETS, min_size=1, max_size=2).map(tuple),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
    st.integers(0, 1 << 45),
)
RULES = st.builds(
    make_rule,
    st.integers(1, 1 << 50),
    NAMES,
    allow=st.booleans(),
    actions=st.lists(st.sampled_from(["Pub", "sub", "Create", "AUDIT", "All"]), min_size=1).map(",".join),
    resource=st.sampled_from(["*", "Topic:a*", "group:g", "Namespace:eu", "Cluster:*"]),
    sources=st.lists(st.sampled_from(["10.0.0.0/8", "::1", "10.1.2.3", "fe80::/10"])),
)
QUOTAS = st.builds(Quota, **{name: st.integers(0, LIMIT_MAX) for name in LIMITS})
