"""Users and rules on disk: `config/trovemq-security.json`, replaced as a whole, with an equal second copy.

    {
      "version": 1,
      "sealingKey": "…",                      the id of the key that seals the secrets
      "users": {"alice": {"kind": "Normal", "enabled": true, "createdMs": 0, "salt": "hex",
                          "secrets": [{"sealed": "base64", "createdMs": 0}]}},
      "rules": [{"number": 1, "subject": "User:alice", "decision": "Allow", "actions": "Pub",
                 "resource": "Topic:orders*", "sources": ["10.0.0.0/8"]}],
      "nextRule": 2,
      "quotas": {"User:alice": {"requestsPerS": 100, "bytesInPerS": 0, "bytesOutPerS": 0, "callsMax": 0,
                                "connectionsMax": 0, "topicsMax": 0, "groupsMax": 0, "queryMsPerS": 0}},
      "crc32": "…"
    }

`sealed` holds StoredKey and ServerKey of SCRAM-SHA-256, 32 bytes each, and the secret (sealing.py).

A broker's users are records of its log, sealed as in the file, which follows
(trovemq_store/topics/security_entries.py, engine/table_log.py). A node that follows keeps those that it
cannot open, and its former users and rules (`problem`).

Invariants
- Both copies of the file have the same content, so that a damaged file never restores an earlier user or
  rule.
- A change counts when it is on disk: state() has it after finish(), completely or not at all.
- A file that cannot be read completely is not used: the log's records take its place. Where they are not the
  whole table, the store does not open.

RocketMQ keeps users in a separate RocksDB (config/auth); it is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trovemq_broker.security.actions import action_text
from trovemq_broker.security.changes import QUOTAS_MAX, RULES_MAX, USERS_MAX, SecurityState
from trovemq_broker.security.quotas import Quota, check_subject
from trovemq_broker.security.rules import Rule, SubjectRules, make_rule
from trovemq_broker.security.sealing import SealingKey, SecretSealer
from trovemq_daemon.users import SECRETS_MAX, Secret, User, UserKind, check_access_key, check_secret
from trovemq_proto import errors
from trovemq_proto.authentication.scram import KEY_SIZE as VERIFIER_KEY_SIZE
from trovemq_proto.authentication.scram import SALT_SIZE, Verifier
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member
from trovemq_store.topics.security_entries import (
    QUOTA,
    RULE,
    SECURITY_PATH,
    TABLE,
    USER,
    SealedChange,
    SecurityEntries,
    members_of,
)
from trovemq_store.topics.table_records import Entry

PATH: Final = SECURITY_PATH
VERSION: Final = 1
SUBJECT_PREFIX: Final = "User:"
_NO_RULES: Final = SubjectRules(())
_QUOTA_MEMBERS: Final = {
    "requestsPerS": "requests_per_s",
    "bytesInPerS": "bytes_in_per_s",
    "bytesOutPerS": "bytes_out_per_s",
    "callsMax": "calls_max",
    "connectionsMax": "connections_max",
    "topicsMax": "topics_max",
    "groupsMax": "groups_max",
    "queryMsPerS": "query_ms_per_s",
}


class SecurityChange:
    """A change that has begun. `run()` may block, and may run in another thread, unless the change is
    `logged` (Change); after it SecurityTable.finish() is to be called."""

    def __init__(self, entries: SealedChange, after: SecurityState) -> None:
        self.entries: Final = entries
        self.after = after
        self.logged: Final = entries.logged
        self.run: Final = entries.run

    @property
    def saved(self) -> bool:
        return self.entries.saved

    @property
    def places(self) -> Sequence[PhysicalOffset]:
        return self.entries.places

    @property
    def end(self) -> PhysicalOffset:
        return self.entries.end


class SecurityTable:
    """The present users, rules and quotas. Used by one thread.

    A change is begin(), run() of its result, and finish(); one change at a time.
    """

    def __init__(
        self, entries: SecurityEntries, key: SealingKey, random_bytes: Callable[[int], bytes]
    ) -> None:
        """Empty until reload()."""
        self._entries = entries
        self._key = key
        self._random_bytes = random_bytes
        self._sealed: dict[tuple[str, Secret], str] = {}
        self._rules: dict[str, SubjectRules] = {}
        self._change: SecurityChange | None = None
        self.state = SecurityState()
        """Is replaced by each change."""
        self.generation = object()
        """Is replaced with it. To remember this object keeps no users and rules of the past in memory."""
        self.failure: TroveError | None = None
        """Why the present entries could not be read; None if they were."""

    @classmethod
    def load(cls, files: FileSystem, key: SealingKey, random_bytes: Callable[[int], bytes]) -> SecurityTable:
        """Reads the file, which is written by each change; an empty table if there is none. TroveError
        STORE_FAILED, STORE_NEWER, SEALING_KEY_MISMATCH."""
        return cls.of(SecurityEntries.load(files), key, random_bytes)

    @classmethod
    def of(
        cls, entries: SecurityEntries, key: SealingKey, random_bytes: Callable[[int], bytes]
    ) -> SecurityTable:
        """The table of these entries. The errors of load()."""
        table = cls(entries, key, random_bytes)
        table._read_entries()
        return table

    def follow(self, entries: SecurityEntries) -> None:
        """The entries are another node's, whose records have changed them, or those of a store that was
        opened again. Entries that cannot be read change nothing."""
        self._entries = entries
        try:
            self._read_entries()
            self.failure = None
        except TroveError as error:
            self.failure = error

    @property
    def problem(self) -> str:
        """The failure, in words; empty if there is none."""
        return "" if self.failure is None else self.failure.message

    def _read_entries(self) -> None:
        try:
            self._read(dict(self._entries.values))
        except (ValueError, TypeError) as error:
            what = f"{PATH}: {error}: put it back from a backup of the store"
            raise TroveError(errors.STORE_FAILED, what, file=PATH) from error

    def sealer(self, prefix: str) -> SecretSealer:
        """Seals the secrets of another file with the same key."""
        return SecretSealer(self._key, self._random_bytes, prefix)

    def check_users(self) -> None:
        """TroveError SERVICE_NOT_AVAILABLE while there are no users at all, on a broker that joins a
        cluster."""
        if not self.state.users:
            what = "this broker has no users yet: they come with the cluster's configuration, from its owner"
            how = "(config_owner), which needs authentication_enable as this one"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"{what} {how}")

    def user(self, access_key: str) -> User | None:
        return self.state.users.get(access_key)

    def rules(self, access_key: str) -> SubjectRules:
        """The rules of a subject, indexed for look-ups."""
        return self._rules.get(access_key, _NO_RULES)

    # --- changes ----------------------------------------------------------------------------------------
    def begin(self, after: SecurityState) -> SecurityChange:
        """Begins a change to the state `after`. TroveError SERVICE_NOT_AVAILABLE while another change is
        running."""
        if self._change is not None:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "users or rules are being changed; try again")
        known, wanted = self._entries.values, self._values(after)
        entries: list[Entry] = [(name, value) for name, value in wanted.items() if value != known.get(name)]
        entries += [(name, None) for name in known if name not in wanted]
        self._change = SecurityChange(self._entries.begin_change(entries), after)
        return self._change

    def finish(self, change: SecurityChange) -> None:
        """Ends the change; to be called after run(), even if that failed."""
        assert change is self._change, "one change at a time"
        self._change = None
        self._entries.finish(change.entries)
        if change.saved:
            self._set(change.after)
        elif change.places:
            self._read_entries()  # of a large change that ended early, the log has the first entries

    def _set(self, state: SecurityState) -> None:
        by_subject: dict[str, list[Rule]] = {}
        for rule in state.rules.values():
            by_subject.setdefault(rule.subject, []).append(rule)
        self._rules = {subject: SubjectRules(rules) for subject, rules in by_subject.items()}
        self.state, self.generation = state, object()

    # --- as JSON ----------------------------------------------------------------------------------------
    def _values(self, state: SecurityState) -> dict[str, JsonObject]:
        """The entries of a state."""
        self._sealed = {
            (user.access_key, secret): self._seal(user.access_key, secret)
            for user in state.users.values()
            for secret in user.secrets
        }
        table: JsonObject = {
            "version": VERSION,
            "sealingKey": self._key.key_id,
            "nextRule": state.next_rule,
        }
        return {
            TABLE: table,
            **{USER + name: self._user_document(user) for name, user in state.users.items()},
            **{f"{RULE}{number}": _rule_document(rule) for number, rule in state.rules.items()},
            **{QUOTA + subject: _quota_document(quota) for subject, quota in state.quotas.items()},
        }

    def _seal(self, access_key: str, secret: Secret) -> str:
        known = self._sealed.get((access_key, secret))
        verifier = secret.verifier
        data = verifier.stored_key + verifier.server_key + secret.value
        return known or self._key.seal(access_key, data, self._random_bytes(12))

    def _user_document(self, user: User) -> JsonObject:
        return {
            "kind": str(user.kind),
            "enabled": user.enabled,
            "createdMs": user.created_ms,
            "salt": user.salt.hex(),
            "secrets": [
                {"sealed": self._sealed[user.access_key, secret], "createdMs": secret.created_ms}
                for secret in user.secrets
            ],
        }

    def _read(self, values: Mapping[str, object]) -> None:
        """Reads the entries. Raises ValueError, TypeError, TroveError STORE_NEWER, SEALING_KEY_MISMATCH."""
        if not values:
            self._set(SecurityState())
            return
        document = object_member(values, TABLE)
        if integer_member(document, "version", 0) > VERSION:
            raise TroveError(errors.STORE_NEWER, f"{PATH} was written by a newer TroveMQ", file=PATH)
        key_id = document.get("sealingKey")
        if key_id != self._key.key_id:
            raise TroveError(
                errors.SEALING_KEY_MISMATCH,
                f"the secrets of {PATH} are sealed by another key than the key file has",
                file=PATH,
            )
        sealed_users, rules = members_of(values, USER), members_of(values, RULE)
        if len(rules) > RULES_MAX or len(sealed_users) > USERS_MAX:
            raise ValueError("it has too many users or rules")
        users = {name: self._read_user(name, object_member(sealed_users, name)) for name in sealed_users}
        by_number = {rule.number: rule for rule in map(_read_rule, rules.values())}
        next_rule = integer_member(document, "nextRule", 0)
        if by_number.keys() != set(map(int, rules)) or max(by_number, default=0) >= next_rule:
            raise ValueError("the numbers of its rules contradict each other")
        in_order = {number: by_number[number] for number in sorted(by_number)}
        self._set(SecurityState(users, in_order, next_rule, _read_quotas(members_of(values, QUOTA))))

    def _read_user(self, name: str, value: Mapping[str, object]) -> User:
        secrets, salt = value.get("secrets"), value.get("salt")
        if not isinstance(secrets, list) or not 1 <= len(secrets) <= SECRETS_MAX or not isinstance(salt, str):
            raise ValueError(f"user {name!a} has no secrets")
        if not isinstance(value.get("enabled"), bool):
            raise ValueError(f"user {name!a} is neither enabled nor disabled")
        salt_bytes = bytes.fromhex(salt)
        if len(salt_bytes) != SALT_SIZE:
            raise ValueError(f"user {name!a} has a salt of another size")
        try:
            user = User(
                check_access_key(name),
                UserKind(str(value.get("kind"))),
                tuple(self._read_secret(name, secret) for secret in secrets),
                salt_bytes,
                bool(value["enabled"]),
                integer_member(value, "createdMs", 0),
            )
        except TroveError as error:
            raise ValueError(f"user {name!a}: {error.message}") from error
        return user

    def _read_secret(self, name: str, value: object) -> Secret:
        if not isinstance(value, dict) or not isinstance(value.get("sealed"), str):
            raise ValueError(f"user {name!a} has a secret that cannot be read")
        sealed = value["sealed"]
        data = self._key.open(name, sealed)
        verifier = Verifier(data[:VERIFIER_KEY_SIZE], data[VERIFIER_KEY_SIZE : 2 * VERIFIER_KEY_SIZE])
        opened = check_secret(data[2 * VERIFIER_KEY_SIZE :])
        secret = Secret(opened, verifier, integer_member(value, "createdMs", 0))
        self._sealed[name, secret] = sealed
        return secret


def _quota_document(quota: Quota) -> JsonObject:
    return {name: getattr(quota, field) for name, field in _QUOTA_MEMBERS.items()}


def _read_quotas(quotas: JsonObject) -> dict[str, Quota]:
    if len(quotas) > QUOTAS_MAX:
        raise ValueError("it has too many quotas")
    try:
        return {
            check_subject(subject): Quota(
                **{
                    field: integer_member(object_member(quotas, subject), name, 0)
                    for name, field in _QUOTA_MEMBERS.items()
                }
            )
            for subject in quotas
        }
    except TroveError as error:
        raise ValueError(f"a quota: {error.message}") from error


def _rule_document(rule: Rule) -> JsonObject:
    return {
        "number": rule.number,
        "subject": SUBJECT_PREFIX + rule.subject,
        "decision": "Allow" if rule.allow else "Deny",
        "actions": action_text(rule.actions),
        "resource": str(rule.pattern),
        "sources": [str(network) for network in rule.sources],
    }


def _read_rule(value: object) -> Rule:
    if not isinstance(value, dict):
        raise TypeError("a rule is not an object")
    subject, decision, sources = value.get("subject"), value.get("decision"), value.get("sources")
    known = decision in ("Allow", "Deny") and isinstance(sources, list) and isinstance(subject, str)
    if not known or not str(subject).startswith(SUBJECT_PREFIX):
        raise ValueError("a rule lacks its subject, decision or sources")
    try:
        return make_rule(
            integer_member(value, "number", 0),
            check_access_key(str(subject).removeprefix(SUBJECT_PREFIX)),
            allow=decision == "Allow",
            actions=str(value.get("actions")),
            resource=str(value.get("resource")),
            sources=[str(source) for source in sources or ()],
        )
    except TroveError as error:
        raise ValueError(f"a rule: {error.message}") from error
