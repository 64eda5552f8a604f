"""Users, rules of access and quotas: on every broker, or on the one that is named."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from trovemq._net.all_brokers import ask_brokers
from trovemq._net.configurations import units_of
from trovemq._net.connections import ConnectionPool
from trovemq._wire.security import SecurityCalls
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.security import (
    AccessDecision,
    AccessRule,
    Quota,
    QuotaDescription,
    UserCredentials,
    UserDescription,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_SECRET_BYTES: Final = 32
_ABSENT: Final = (errors.USER_NOT_FOUND,)

_Result = TypeVar("_Result")


class Users:
    """Administration of users; `Client.admin.users`. For super users, at brokers that authenticate callers.

    If `broker` is None, every live broker is called; each broker has its own users, but for those that share
    the cluster's configuration, of which one is called. These calls transmit secrets: brokers accept them
    only over TLS or on loopback. A broker that is away hides no other: the result names it, as `missing` of a
    read and as `pending` of a change.
    All calls raise TroveError; after another failure of one broker the changes on others stay.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def create(
        self,
        access_key: str,
        *,
        secret_key: str = "",
        is_super: bool = False,
        broker: str | None = None,
        exist_ok: bool = False,
    ) -> UserCredentials:
        """Creates a user, durably, with the same secret on each broker.

        Args:
            access_key: 1 to 64 letters, digits, '_', '.', '@' and '-'.
            secret_key: 8 to 256 printable ASCII characters without spaces; empty: a random one is made.
            is_super: Whether the user may do everything, without rules.
            broker: The broker; None for all.
            exist_ok: A user of that name is not an error; it stays as it is, with its own secret.

        Returns:
            The secret, which cannot be read again; empty if every broker had the user before.

        Raises:
            TroveError: USER_EXISTS, USER_ILLEGAL, ACCESS_DENIED, AUTHENTICATION_DISABLED, …
        """
        secret, kind = secret_key or new_secret(), "Super" if is_super else "Normal"

        async def create(calls: SecurityCalls) -> tuple[UserDescription, bool]:
            try:
                return await calls.create_user(access_key, secret, kind), True
            except TroveError as error:
                if not exist_ok or error.spec is not errors.USER_EXISTS:
                    raise
                (user,) = [user for user in await calls.users() if user.access_key == access_key]
                return user, False

        made = await _all(self._pool, broker, create, change=True)
        any_is_new = any(is_new for _, is_new in made)
        users = tuple(user for user, _ in made)
        return UserCredentials(access_key, secret if any_is_new else "", users, made.pending)

    async def rotate(
        self, access_key: str, *, secret_key: str = "", broker: str | None = None
    ) -> UserCredentials:
        """Gives the user a new secret; the previous one is valid until `drop_old_secret` or the next
        rotation.

        Raises TroveError USER_NOT_FOUND, USER_ILLEGAL, …
        """
        secret = secret_key or new_secret()
        rotated = await _all(
            self._pool, broker, lambda calls: calls.rotate(access_key, secret), _ABSENT, change=True
        )
        return UserCredentials(access_key, secret, tuple(rotated), rotated.pending)

    async def drop_old_secret(
        self, access_key: str, *, broker: str | None = None
    ) -> BrokerAnswers[UserDescription]:
        """From now on only the newest secret is valid. Raises TroveError USER_NOT_FOUND."""
        return await _all(
            self._pool, broker, lambda calls: calls.drop_old_secret(access_key), _ABSENT, change=True
        )

    async def enable(
        self, access_key: str, *, enabled: bool = True, broker: str | None = None
    ) -> BrokerAnswers[UserDescription]:
        """Accepts the user's calls, or with `enabled=False` refuses them, at once.

        Raises TroveError USER_NOT_FOUND; REQUEST_ILLEGAL for the last super user.
        """
        return await _all(
            self._pool, broker, lambda calls: calls.enable(access_key, enabled=enabled), _ABSENT, change=True
        )

    async def delete(self, access_key: str, *, broker: str | None = None) -> BrokerAnswers[str]:
        """Deletes the user and the user's rules. Returns the brokers that had it.

        Raises TroveError USER_NOT_FOUND; REQUEST_ILLEGAL for the last super user.
        """
        return await _all(
            self._pool, broker, lambda calls: calls.delete_user(access_key), _ABSENT, change=True
        )

    async def list_all(self, *, broker: str | None = None) -> BrokerAnswers[UserDescription]:
        """Every user of every broker; a user on two brokers is listed twice, but once for those that share a
        configuration."""
        lists = await _all(self._pool, broker, lambda calls: calls.users())
        return lists.of(user for users in lists for user in users)


class Rules:
    """Administration of rules of access; `Client.admin.rules`. For super users, at brokers that authenticate
    callers.

    If `broker` is None, every live broker is called; each broker has its own rules, but for those that share
    the cluster's configuration, of which one is called. A broker that
    is away hides no other: the result names it, as `missing` of a read and as `pending` of a change.
    All calls raise TroveError; after another failure of one broker the changes on others stay.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def allow(
        self,
        access_key: str,
        actions: str,
        resource: str,
        *,
        sources: Sequence[str] = (),
        broker: str | None = None,
    ) -> BrokerAnswers[AccessRule]:
        """Allows a user something, durably and from the next call on.

        Args:
            access_key: The user.
            actions: Names with commas: Pub, Sub, Create, Update, Delete, Get, List, Read, Command, Backup,
                Audit, All.
            resource: `Topic:orders`, `Topic:orders*`, `Group:*`, `Namespace:eu`, `Cluster:NAME` or `*`.
            sources: Addresses or networks (`10.0.0.0/8`); none: from anywhere.
            broker: The broker; None for all.

        Raises:
            TroveError: USER_NOT_FOUND, RULE_ILLEGAL, LIMIT_EXCEEDED, …
        """
        return await self._create(access_key, actions, resource, True, sources, broker)

    async def deny(
        self,
        access_key: str,
        actions: str,
        resource: str,
        *,
        sources: Sequence[str] = (),
        broker: str | None = None,
    ) -> BrokerAnswers[AccessRule]:
        """Denies a user something, durably and from the next call on. A matching deny wins over every allow.

        Args:
            access_key: The user.
            actions: Names with commas: Pub, Sub, Create, …, All.
            resource: `Topic:orders`, `Topic:orders*`, `Group:*`, `Namespace:eu`, `Cluster:NAME` or `*`.
            sources: Addresses or networks (`10.0.0.0/8`); none: from anywhere.
            broker: The broker; None for all.

        Raises:
            TroveError: USER_NOT_FOUND, RULE_ILLEGAL, LIMIT_EXCEEDED, …
        """
        return await self._create(access_key, actions, resource, False, sources, broker)

    async def _create(
        self,
        access_key: str,
        actions: str,
        resource: str,
        allow: bool,
        sources: Sequence[str],
        broker: str | None,
    ) -> BrokerAnswers[AccessRule]:
        return await _all(
            self._pool,
            broker,
            lambda calls: calls.create_rule(access_key, actions, resource, allow=allow, sources=sources),
            change=True,
        )

    async def delete(self, number: int, *, broker: str | None = None) -> None:
        """Deletes a rule; each broker numbers its own, but for those that share a configuration.

        Raises TroveError RULE_NOT_FOUND; BROKER_AMBIGUOUS if there are several brokers and none is named.
        """
        if broker is None and len(units_of(self._pool.routes.brokers())) > 1:
            raise TroveError(errors.BROKER_AMBIGUOUS, "each broker numbers its own rules: name the broker")
        await _all(self._pool, broker, lambda calls: calls.delete_rule(number), change=True)

    async def list_all(self, access_key: str = "", *, broker: str | None = None) -> BrokerAnswers[AccessRule]:
        """The rules of a user; without an access key those of all users. Raises TroveError USER_NOT_FOUND."""
        lists = await _all(self._pool, broker, lambda calls: calls.rules(access_key), _ABSENT)
        return lists.of(rule for rules in lists for rule in rules)

    async def test(
        self, access_key: str, action: str, resource: str, *, source: str = "", broker: str | None = None
    ) -> BrokerAnswers[AccessDecision]:
        """Whether a user may do something, and which rule decides, on each broker.

        Args:
            access_key: The user.
            action: One or more; one of them is enough.
            resource: `Topic:orders`: a name, not a pattern.
            source: The caller's address; empty: this client's own.
            broker: The broker; None for all.
        """
        return await _all(
            self._pool, broker, lambda calls: calls.test(access_key, action, resource, source), _ABSENT
        )


class Quotas:
    """Administration of quotas; `Client.admin.quotas`. For super users, at brokers that authenticate callers.

    If `broker` is None, every live broker is called, but for a change only one of those that share the
    cluster's configuration; each other broker has its own quotas. A broker that
    is away hides no other: the result names it, as `missing` of a read and as `pending` of a change.
    All calls raise TroveError; after another failure of one broker the changes on others stay.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def set(
        self, subject: str, quota: Quota, *, broker: str | None = None
    ) -> BrokerAnswers[QuotaDescription]:
        """Sets a quota, durably and from the next request on; each broker counts separately.

        Args:
            subject: `User:alice`, `User:*` (each user without a `User:NAME` quota), `Address:10.0.0.7`,
                `Address:*`, `Client:ID` or `Client:*`. For a super user only `User:NAME` counts.
            quota: The limits, all of them; `Quota()` removes the quota.
            broker: The broker; None for all.

        Raises:
            TroveError: USER_NOT_FOUND, REQUEST_ILLEGAL, LIMIT_EXCEEDED, …
        """
        return await _all(
            self._pool, broker, lambda calls: calls.set_quota(subject, quota), _ABSENT, change=True
        )

    async def list_all(self, *, broker: str | None = None) -> BrokerAnswers[QuotaDescription]:
        """Every quota of every broker, with the numbers of slowed and refused requests there."""
        lists = await _all(self._pool, broker, lambda calls: calls.quotas(), shared=False)
        return lists.of(quota for quotas in lists for quota in quotas)


def new_secret() -> str:
    """A random one."""
    return secrets.token_urlsafe(_SECRET_BYTES)


async def _all(
    pool: ConnectionPool,
    broker: str | None,
    ask: Callable[[SecurityCalls], Awaitable[_Result]],
    absent: Sequence[errors.ErrorSpec] = (),
    *,
    change: bool = False,
    shared: bool = True,
) -> BrokerAnswers[_Result]:
    """`shared`: one of the brokers that share a configuration answers for all."""
    return await ask_brokers(
        pool,
        pool.routes.brokers(broker),
        lambda info: ask(SecurityCalls(pool.connection(info), info.name)),
        broker=broker,
        absent=absent,
        change=change,
        shared=shared,
    )
