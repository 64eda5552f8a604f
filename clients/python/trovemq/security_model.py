"""Users, rules of access and quotas, as the SDK gives them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UserDescription:
    """One user on one broker.

    Attributes:
        access_key: The user's name.
        kind: Super (may do everything) or Normal.
        enabled: Whether calls of the user are taken.
        created: Epoch ms.
        secrets_created: When each secret that is valid was made, the newest first; two after a rotation.
        broker: Which broker says so.
    """

    access_key: str
    kind: str
    enabled: bool
    created: int
    secrets_created: tuple[int, ...]
    broker: str


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """A user's access key and a new secret, which nobody can look up again.

    Attributes:
        access_key: The user's name.
        secret_key: The secret; not part of the repr.
        users: The user as each broker has it.
    """

    access_key: str
    secret_key: str = field(repr=False)
    users: tuple[UserDescription, ...]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A right of a user, or a ban.

    Attributes:
        number: Of the rule, on its broker.
        access_key: Whom it is about.
        allow: False: it denies. A matching deny wins over every allow.
        actions: Names with commas between: `Pub,Sub`, `All`.
        resource: `Topic:orders`, `Topic:orders*`, `Group:*`, `Namespace:eu`, `Cluster:NAME` or `*`.
        sources: Addresses and networks that it is about; none: all.
        broker: Which broker has it.
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
        rule: The rule that decided; None where none did.
        broker: Which broker says so.
    """

    allowed: bool
    reason: str
    rule: AccessRule | None
    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much may be taken; 0: no limit.

    Attributes:
        requests_per_s: Calls, and messages of streams.
        bytes_in_per_s: Of requests: produced messages, mostly.
        bytes_out_per_s: Of replies: consumed messages, mostly.
        calls_max: Calls and streams that are open at once.
        connections_max: Connections with such calls; of an address, all its connections.
        topics_max: Topics that are there and that the user made; for users alone.
        groups_max: The same of groups.
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
        subject: Whose: `User:alice`, `User:*` (each user), `Address:10.0.0.7`, `Address:*`, `Client:ID` or
            `Client:*`.
        quota: The limits.
        open_calls: Now, of all that the quota is for.
        slowed: Requests that waited.
        refused: Requests and calls that were refused.
        broker: Which broker has it.
    """

    subject: str
    quota: Quota
    open_calls: int
    slowed: int
    refused: int
    broker: str
