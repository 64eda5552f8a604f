"""The settings of the cluster's configuration as texts, in both directions: equal settings have equal texts.

A setting that has its default is left out. Numbers are decimal, flags `true` and `false`.

| kind  | name          | settings                                                                         |
|-------|---------------|----------------------------------------------------------------------------------|
| topic | the topic     | message_type (NORMAL); deduplicate, order, retention, retention_age_max,         |
|       |               | indexed_properties, writes (topic_options.py); perm (6); creator                 |
| group | the group     | orderly (false); retry_max (16); retry_policy (`customized 1000,5000`, in ms, or |
|       |               | `exponential 5000,7200000,2.0`: initial ms, longest ms, multiplier);             |
|       |               | consume_enable, consume_from_min, broadcast_enable (true); creator               |
| user  | access key    | kind (Normal); enabled (true); created_ms (0). Secrets are bytes, see below      |
| rule  | its number    | subject (`User:alice`), decision (`Allow`, `Deny`), actions (`Pub,Sub`),         |
|       |               | resource (`Topic:orders*`); sources (networks with commas between, sorted)       |
| quota | the subject   | the limits that are not 0, by the names of security/quotas.py                    |

The secrets of a user, a JSON object without spaces:

    {"salt":"hex","secrets":[{"createdMs":0,"storedKey":"hex","serverKey":"hex","value":"…"}]}

Not in it, each broker's own: RocketMQ's `order` and topicSysFlag of a topic, attributes that TroveMQ does not
know. The queues of a topic are its placement.

A reader (…_of) raises TroveError STORE_NEWER for a setting that this version does not know, REQUEST_ILLEGAL
for one that it cannot read, and the errors of the kind. It does not check the limits of a user's call, which
the caller checks: a store that RocketMQ has written may be beyond them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeVar

from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.security.actions import action_text
from trovemq_broker.security.quotas import LIMITS, Quota
from trovemq_broker.security.rules import Rule, make_rule
from trovemq_broker.security.table import SUBJECT_PREFIX
from trovemq_daemon.users import SECRETS_MAX, Secret, User, UserKind, check_access_key, check_secret
from trovemq_proto import errors
from trovemq_proto.authentication.scram import KEY_SIZE, SALT_SIZE, Verifier
from trovemq_proto.errors import TroveError
from trovemq_store.topics.config_marks import unserved
from trovemq_store.topics.creators import Creator, creator_of
from trovemq_store.topics.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from trovemq_store.topics.subscription_groups import RETRY_MAX_DEFAULT, SubscriptionGroup
from trovemq_store.topics.topic_options import canonical_texts
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, QUEUE_COUNT_DEFAULT, TopicConfig

T = TypeVar("T")
PERM_DEFAULT: Final = PERM_READ | PERM_WRITE
PERM_MAX: Final = 15
MESSAGE_TYPE_DEFAULT: Final = "NORMAL"
OPTION_NAMES: Final = (
    "deduplicate",
    "order",
    "retention",
    "retention_age_max",
    "indexed_properties",
    "writes",
    "acknowledge",
)
_FLAGS: Final = {"true": True, "false": False}
_DECISIONS: Final = {"Allow": True, "Deny": False}


# --- topics -----------------------------------------------------------------------------------------------
def topic_texts(config: TopicConfig) -> dict[str, str]:
    """Of a topic that is unplaced or withheld here: its settings without that."""
    state = unserved(config.attributes)
    perm = config.perm if state is None else state.value
    return _without_defaults(
        {
            "message_type": config.message_type,
            **canonical_texts(config.options),
            "perm": str(perm),
            "creator": creator_of(config.attributes),
        },
        {"message_type": MESSAGE_TYPE_DEFAULT, "perm": str(PERM_DEFAULT)},
    )


def topic_of(name: str, settings: Mapping[str, str], queue_count: int = QUEUE_COUNT_DEFAULT) -> TopicConfig:
    """A topic with that many queues. Also TroveError TOPIC_OPTION_ILLEGAL."""
    texts = _Texts(Kind.TOPIC, name, settings, ("message_type", *OPTION_NAMES, "perm", "creator"))
    perm = texts.number("perm", PERM_DEFAULT)
    if not 0 <= perm <= PERM_MAX:
        texts.refuse(f"perm {perm} is not 0 to {PERM_MAX}")
    made = TopicConfig(name, queue_count, queue_count, perm, attributes=texts.creator().attributes)
    made = made.with_message_type(settings.get("message_type", MESSAGE_TYPE_DEFAULT))
    return made.with_options({option: settings[option] for option in OPTION_NAMES if option in settings})


# --- groups -----------------------------------------------------------------------------------------------
def group_texts(group: SubscriptionGroup) -> dict[str, str]:
    """Of a group that is withheld here: its settings without that."""
    state = unserved(group.attributes)
    consume_enable = group.consume_enable if state is None else bool(state.value)
    return _without_defaults(
        {
            "orderly": _flag_text(group.orderly),
            "retry_max": str(group.retry_max),
            "retry_policy": _policy_text(group.retry_policy),
            "consume_enable": _flag_text(consume_enable),
            "consume_from_min": _flag_text(group.consume_from_min),
            "broadcast_enable": _flag_text(group.broadcast_enable),
            "creator": creator_of(group.attributes),
        },
        _GROUP_DEFAULTS,
    )


def group_of(name: str, settings: Mapping[str, str]) -> SubscriptionGroup:
    texts = _Texts(Kind.GROUP, name, settings, (*_GROUP_DEFAULTS, "creator"))
    return SubscriptionGroup(
        name,
        orderly=texts.flag("orderly", default=False),
        retry_max=texts.number("retry_max", RETRY_MAX_DEFAULT),
        retry_policy=texts.read("retry_policy", _policy_of, DEFAULT_RETRY_POLICY),
        consume_enable=texts.flag("consume_enable", default=True),
        consume_from_min=texts.flag("consume_from_min", default=True),
        broadcast_enable=texts.flag("broadcast_enable", default=True),
        attributes=texts.creator().attributes,
    )


def _policy_text(policy: RetryPolicy) -> str:
    if policy.kind == "customized":
        return f"customized {','.join(map(str, policy.next_ms))}"
    return f"exponential {policy.initial_ms},{policy.max_ms},{policy.multiplier}"


def _policy_of(text: str) -> RetryPolicy:
    """ValueError."""
    kind, _, values = text.partition(" ")
    if kind == "customized":
        return RetryPolicy(next_ms=tuple(int(value) for value in values.split(",")))
    if kind != "exponential":
        raise ValueError
    initial, longest, multiplier = values.split(",")
    return RetryPolicy(
        "exponential", initial_ms=int(initial), max_ms=int(longest), multiplier=float(multiplier)
    )


# --- users ------------------------------------------------------------------------------------------------
def user_texts(user: User) -> dict[str, str]:
    """Without the secrets."""
    return _without_defaults(
        {"kind": str(user.kind), "enabled": _flag_text(user.enabled), "created_ms": str(user.created_ms)},
        {"kind": str(UserKind.NORMAL), "enabled": "true", "created_ms": "0"},
    )


def user_secrets(user: User) -> bytes:
    """Salt, secrets and their verifiers, in the clear: they are sealed where they are stored."""
    secrets = [
        {
            "createdMs": secret.created_ms,
            "storedKey": secret.verifier.stored_key.hex(),
            "serverKey": secret.verifier.server_key.hex(),
            "value": secret.value.decode("ascii"),
        }
        for secret in user.secrets
    ]
    return json.dumps({"salt": user.salt.hex(), "secrets": secrets}, separators=(",", ":")).encode()


def user_of(name: str, settings: Mapping[str, str], secrets: bytes) -> User:
    """Also TroveError USER_ILLEGAL. No error shows a secret."""
    texts = _Texts(Kind.USER, name, settings, ("kind", "enabled", "created_ms"))
    try:
        salt, read = _secrets_of(secrets)
    except (ValueError, TypeError, KeyError, AttributeError):
        what = f"{Kind.USER} {name}: its secrets cannot be read"
        raise TroveError(errors.REQUEST_ILLEGAL, what, kind=Kind.USER, name=name) from None
    return User(
        check_access_key(name),
        texts.read("kind", UserKind, UserKind.NORMAL),
        read,
        salt,
        texts.flag("enabled", default=True),
        texts.number("created_ms", 0),
    )


def _secrets_of(data: bytes) -> tuple[bytes, tuple[Secret, ...]]:
    """ValueError, TypeError, KeyError, AttributeError; TroveError USER_ILLEGAL."""
    document = json.loads(data)
    salt = bytes.fromhex(document["salt"])
    secrets = tuple(
        Secret(
            check_secret(one["value"].encode("ascii")),
            Verifier(bytes.fromhex(one["storedKey"]), bytes.fromhex(one["serverKey"])),
            int(one["createdMs"]),
        )
        for one in document["secrets"]
    )
    keys = [key for secret in secrets for key in (secret.verifier.stored_key, secret.verifier.server_key)]
    if len(salt) != SALT_SIZE or any(len(key) != KEY_SIZE for key in keys):
        raise ValueError
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise ValueError
    return salt, secrets


# --- rules and quotas -------------------------------------------------------------------------------------
def rule_name(rule: Rule) -> str:
    return str(rule.number)


def rule_texts(rule: Rule) -> dict[str, str]:
    return _without_defaults(
        {
            "subject": SUBJECT_PREFIX + rule.subject,
            "decision": "Allow" if rule.allow else "Deny",
            "actions": action_text(rule.actions),
            "resource": str(rule.pattern),
            "sources": ",".join(sorted(map(str, rule.sources))),
        },
        {},
    )


def rule_of(name: str, settings: Mapping[str, str]) -> Rule:
    """Also TroveError RULE_ILLEGAL, USER_ILLEGAL."""
    known = ("subject", "decision", "actions", "resource", "sources")
    texts = _Texts(Kind.RULE, name, settings, known)
    subject, sources = settings.get("subject", ""), settings.get("sources", "")
    if not (name.isascii() and name.isdecimal() and len(name) <= 18 and str(int(name)) == name):
        texts.refuse("the name of a rule is its number")
    if not subject.startswith(SUBJECT_PREFIX):
        texts.refuse(f"its subject is not {SUBJECT_PREFIX} and an access key")
    return make_rule(
        int(name),
        check_access_key(subject.removeprefix(SUBJECT_PREFIX)),
        allow=texts.read("decision", _DECISIONS.__getitem__, None) is True,
        actions=settings.get("actions", ""),
        resource=settings.get("resource", ""),
        sources=sources.split(",") if sources else (),
    )


def quota_texts(quota: Quota) -> dict[str, str]:
    return {name: str(getattr(quota, name)) for name in LIMITS if getattr(quota, name)}


def quota_of(name: str, settings: Mapping[str, str]) -> Quota:
    texts = _Texts(Kind.QUOTA, name, settings, LIMITS)
    return Quota(**{limit: texts.number(limit, 0) for limit in settings})


# --- texts ------------------------------------------------------------------------------------------------
class _Texts:
    """Reads the settings of one entry."""

    def __init__(self, kind: Kind, name: str, settings: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._key = f"{kind} {name[:80]}"
        self._fields = {"kind": str(kind), "name": name}
        self._settings = settings
        unknown = sorted(settings.keys() - known)
        if unknown:
            what = f"{self._key} has the setting {unknown[0][:40]!a} of a newer TroveMQ: upgrade this broker"
            raise TroveError(errors.STORE_NEWER, what, **self._fields)

    def refuse(self, what: str) -> NoReturn:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{self._key}: {what}", **self._fields)

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """`parse` raises ValueError or KeyError for a text that it does not know."""
        if name not in self._settings:
            return default
        try:
            return parse(self._settings[name])
        except (ValueError, KeyError):
            self.refuse(f"{name} is {self._settings[name][:40]!a}, which cannot be read")

    def flag(self, name: str, *, default: bool) -> bool:
        return self.read(name, _FLAGS.__getitem__, default)

    def number(self, name: str, default: int) -> int:
        return self.read(name, int, default)

    def creator(self) -> Creator:
        return Creator(self._settings.get("creator", ""))


def _flag_text(value: bool) -> str:
    return "true" if value else "false"


def _without_defaults(texts: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text not in ("", defaults.get(name))}


_GROUP_DEFAULTS: Final[Mapping[str, str]] = {
    "orderly": "false",
    "retry_max": str(RETRY_MAX_DEFAULT),
    "retry_policy": _policy_text(DEFAULT_RETRY_POLICY),
    "consume_enable": "true",
    "consume_from_min": "true",
    "broadcast_enable": "true",
}
