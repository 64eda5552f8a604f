"""Users, rules of access and quotas, as values of the SDK."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UserDescription:
    """One user on one broker.

    Attributes:
        access_key: The user's name.
        kind: Super (may do everything) or Normal.
        enabled: Whether calls of the user are accepted.
        created: Epoch ms.
        secrets_created: When each valid secret was created, the newest first; two after a rotation.
        broker: The broker that has it.
    """

    access_key: str
    kind: str
    enabled: bool
    created: int
    secrets_created: tuple[int, ...]
    broker: str


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """A user's access key and a new secret, which cannot be read again.

    Attributes:
        access_key: The user's name.
        secret_key: The secret; not part of the repr.
        users: The user as each broker has it.
        pending: Brokers that are away: the user, or the secret, is not there yet.
    """

    access_key: str
    secret_key: str = field(repr=False)
    users: tuple[UserDescription, ...]
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A rule that allows or denies something to a user.

    Attributes:
        number: The number of the rule on its broker.
        access_key: The user.
        allow: Whether it allows or denies. A matching deny wins over every allow.
        actions: Names with commas between: `Pub,Sub`, `All`.
        resource: `Topic:orders`, `Topic:orders*`, `Group:*`, `Namespace:eu`, `Cluster:NAME` or `*`.
        sources: Addresses and networks for which it is valid; none: all.
        broker: The broker that has it.
    """

    number: int
    access_key: str
    allow: bool
    actions: str
    resource: str
    sources: tuple[str, ...]
    broker: str


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether a user may do something, and why.

    Attributes:
        allowed: The answer.
        reason: Why, in words.
        rule: The rule that decided; None if none did.
        broker: The broker that decided.
    """

    allowed: bool
    reason: str
    rule: AccessRule | None
    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a quota; 0: no limit.

    Attributes:
        requests_per_s: Calls, and messages of streams.
        bytes_in_per_s: Bytes of requests: mostly of produced messages.
        bytes_out_per_s: Bytes of replies: mostly of consumed messages.
        calls_max: Calls and streams that are open at once.
        connections_max: Connections with such calls; for an address all its connections.
        topics_max: Existing topics that the user has created; only for users.
        groups_max: Existing groups that the user has created; only for users.
        query_ms_per_s: Milliseconds of the broker's event loop that queries and listings may take.
    """

    requests_per_s: int = 0
    bytes_in_per_s: int = 0
    bytes_out_per_s: int = 0
    calls_max: int = 0
    connections_max: int = 0
    topics_max: int = 0
    groups_max: int = 0
    query_ms_per_s: int = 0


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """A quota on one broker.

    Attributes:
        subject: The quota's subject: `User:alice`, `User:*` (each user), `Address:10.0.0.7`, `Address:*`,
            `Client:ID` or `Client:*`.
        quota: The limits.
        open_calls: The present number of open calls, of all that the quota is for.
        slowed: Requests that waited.
        refused: Requests and calls that were refused.
        broker: The broker that has it.
    """

    subject: str
    quota: Quota
    open_calls: int
    slowed: int
    refused: int
    broker: str
