"""Settings of the cluster's configuration as texts: the same in both directions, equal for equal settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given

from tests.unit.cluster_config.config_values import GROUPS, QUOTAS, RULES, USERS, topic_configs
from trovemq_broker.admin.config_texts import (
    group_of,
    group_texts,
    quota_of,
    quota_texts,
    rule_name,
    rule_of,
    rule_texts,
    topic_of,
    topic_texts,
    user_of,
    user_secrets,
    user_texts,
)
from trovemq_broker.security.quotas import Quota
from trovemq_broker.security.rules import Rule, make_rule
from trovemq_daemon.users import User
from trovemq_proto.errors import TroveError
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.topics import TopicConfig


@given(topic_configs())
def test_a_topic_is_read_back_from_its_texts(config: TopicConfig) -> None:
    texts = topic_texts(config)
    again = topic_of(config.name, texts, config.queue_count)
    assert topic_texts(again) == texts
    assert (again.perm, again.message_type, again.options) == (
        config.perm,
        config.message_type,
        config.options,
    )
    assert again.attributes.get("trovemq.creator") == config.attributes.get("trovemq.creator")


@given(GROUPS)
def test_a_group_is_read_back_from_its_texts(group: SubscriptionGroup) -> None:
    again = group_of("G", group_texts(group))
    assert again == group
    assert group_texts(again) == group_texts(group)


@given(USERS)
def test_a_user_is_read_back_with_its_secrets(user: User) -> None:
    again = user_of(user.access_key, user_texts(user), user_secrets(user))
    assert again == user
    assert (user_texts(again), user_secrets(again)) == (user_texts(user), user_secrets(user))


@given(RULES)
def test_a_rule_is_read_back_from_its_texts(rule: Rule) -> None:
    again = rule_of(rule_name(rule), rule_texts(rule))
    assert rule_texts(again) == rule_texts(rule)
    assert (again.subject, again.allow, again.actions, again.pattern) == (
        rule.subject,
        rule.allow,
        rule.actions,
        rule.pattern,
    )
    assert set(again.sources) == set(rule.sources)


@given(QUOTAS)
def test_a_quota_is_read_back_from_its_texts(quota: Quota) -> None:
    assert quota_of("User:*", quota_texts(quota)) == quota


def test_equal_settings_that_were_written_differently_have_equal_texts() -> None:
    assert topic_texts(topic_of("T", {"deduplicate": "60m"})) == {"deduplicate": "1h"}
    assert topic_texts(topic_of("T", {"indexed_properties": " a , b "})) == {"indexed_properties": "a,b"}
    one = make_rule(1, "u", allow=True, actions="sub,PUB", resource="topic:a", sources=["::1", "10.0.0.1"])
    two = make_rule(1, "u", allow=True, actions="Pub,Sub", resource="Topic:a", sources=["10.0.0.1", "::1"])
    assert rule_texts(one) == rule_texts(two)


def test_defaults_have_no_text() -> None:
    assert topic_texts(topic_of("T", {})) == {}
    assert group_texts(SubscriptionGroup("G")) == {}
    assert quota_texts(Quota()) == {}


@pytest.mark.parametrize(
    ("read", "settings", "symbol"),
    [
        (topic_of, {"colour": "red"}, "STORE_NEWER"),
        (topic_of, {"perm": "x"}, "REQUEST_ILLEGAL"),
        (topic_of, {"deduplicate": "soon"}, "TOPIC_OPTION_ILLEGAL"),
        (group_of, {"orderly": "yes"}, "REQUEST_ILLEGAL"),
        (group_of, {"retry_policy": "customized"}, "REQUEST_ILLEGAL"),
        (group_of, {"retry_policy": "exponential 1,2"}, "REQUEST_ILLEGAL"),
        (group_of, {"retries": "2"}, "STORE_NEWER"),
        (rule_of, {"subject": "User:a", "decision": "Perhaps"}, "REQUEST_ILLEGAL"),
        (quota_of, {"requests_per_s": "-1"}, "REQUEST_ILLEGAL"),
        (quota_of, {"dreams_per_s": "1"}, "STORE_NEWER"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(
    read: Callable[[str, Mapping[str, str]], object], settings: dict[str, str], symbol: str
) -> None:
    with pytest.raises(TroveError) as caught:
        read("7", settings)
    assert caught.value.symbol == symbol


def test_no_error_shows_the_secrets_of_a_user() -> None:
    for secrets in (b"", b"[]", b'{"salt":"00","secrets":[]}', b'{"salt":"zz","secrets":"S3cret-S3cret"}'):
        with pytest.raises(TroveError) as caught:
            user_of("u", {}, secrets)
        assert caught.value.symbol == "REQUEST_ILLEGAL"
        assert "S3cret" not in str(caught.value)
