"""Accepts a client's settings: its group is created, and the registry gets its description."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trovemq_broker.server.core.clients import ClientDescription, Subscription
from trovemq_broker.server.wire.client_settings import ClientSettings
from trovemq_broker.server.wire.statuses import METADATA_VALUE_SIZE_MAX, Context, metadata_value
from trovemq_proto.positions import EpochMs
from trovemq_store.topics.subscription_groups import SubscriptionGroup


@dataclass(frozen=True, slots=True)
class SettingsRules:
    """The broker's values. `group_for_use` returns the group, which its first use with these topics creates
    if settings allow that; else it raises GROUP_NOT_FOUND."""

    group_for_use: Callable[[str, Iterable[str]], SubscriptionGroup]
    body_size_max: int


def accept_settings(
    settings: ClientSettings, context: Context, rules: SettingsRules, now_ms: EpochMs
) -> tuple[ClientDescription, SubscriptionGroup | None]:
    """The client's description, and the group of a consumer. Values that the settings omit (of some clients)
    are taken from the metadata. Raises TroveError GROUP_NOT_FOUND, LIMIT_EXCEEDED."""
    group = rules.group_for_use(settings.group, settings.subscriptions) if settings.group else None
    language = settings.language or metadata_value(context, "x-mq-language")
    version = settings.version or metadata_value(context, "x-mq-client-version")
    description = ClientDescription(
        client_type=settings.client_type,
        group=group.name if group is not None else "",
        topics=settings.topics,
        subscriptions={
            topic: Subscription(one.kind, one.expression, now_ms)
            for topic, one in settings.subscriptions.items()
        },
        language=language[:METADATA_VALUE_SIZE_MAX],
        version=version[:METADATA_VALUE_SIZE_MAX],
        hostname=settings.hostname[:METADATA_VALUE_SIZE_MAX],
        peer=context.peer()[:METADATA_VALUE_SIZE_MAX],
        request_timeout_ms=settings.request_timeout_ms,
    )
    return description, group
