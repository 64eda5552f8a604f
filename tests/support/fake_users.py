"""The calls about users and rules that the command line makes, answered from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.security import AccessRule, UserCredentials, UserDescription
from trovemq_proto.errors import ErrorSpec, TroveError


@dataclass
class FakeUsers:
    """Users of each broker. `error`: why the caller gets nothing."""

    error: ErrorSpec | None = None
    by_place: dict[tuple[str, str], UserDescription] = field(default_factory=dict)
    secrets: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, name: str, broker: str, *, is_super: bool = False, enabled: bool = True) -> None:
        kind = "Super" if is_super else "Normal"
        self.by_place[name, broker] = UserDescription(name, kind, enabled, 1, (1,), broker)

    async def create(
        self, access_key: str, *, secret_key: str, is_super: bool, broker: str
    ) -> UserCredentials:
        assert (access_key, broker) not in self.by_place
        self.add(access_key, broker, is_super=is_super)
        self.secrets[access_key, broker] = secret_key
        return UserCredentials(access_key, secret_key, (self.by_place[access_key, broker],))

    async def enable(self, access_key: str, *, enabled: bool = True, broker: str) -> list[UserDescription]:
        changed = replace(self.by_place[access_key, broker], enabled=enabled)
        self.by_place[access_key, broker] = changed
        return [changed]

    async def list_all(self, *, broker: str | None = None) -> BrokerAnswers[UserDescription]:
        if self.error is not None:
            raise TroveError(self.error)
        return BrokerAnswers(user for user in self.by_place.values() if broker in (None, user.broker))


@dataclass
class FakeRules:
    """Rules of each broker."""

    rules: list[AccessRule] = field(default_factory=list)

    async def allow(
        self, access_key: str, actions: str, resource: str, *, sources: Sequence[str] = (), broker: str
    ) -> list[AccessRule]:
        return self.add(True, access_key, actions, resource, sources, broker)

    async def deny(
        self, access_key: str, actions: str, resource: str, *, sources: Sequence[str] = (), broker: str
    ) -> list[AccessRule]:
        return self.add(False, access_key, actions, resource, sources, broker)

    def add(
        self, allow: bool, name: str, actions: str, resource: str, sources: Sequence[str], broker: str
    ) -> list[AccessRule]:
        number = len(self.rules) + 1
        self.rules.append(AccessRule(number, name, allow, actions, resource, tuple(sources), broker))
        return self.rules[-1:]

    async def list_all(self, access_key: str = "", *, broker: str | None = None) -> BrokerAnswers[AccessRule]:
        return BrokerAnswers(rule for rule in self.rules if broker in (None, rule.broker))
