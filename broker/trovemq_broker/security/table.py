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

Invariants
- Both copies have the same content, so that a damaged file never restores an earlier user or rule.
- A change counts when it is on disk: state() has it after finish(), completely or not at all.
- A file that cannot be read completely is not used: the store does not open.

RocketMQ keeps users in a separate RocksDB (config/auth); it is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member

PATH: Final = "config/trovemq-security.json"
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
    """A change that has begun. `run()` may block, and may run in another thread; after it
    SecurityTable.finish() is to be called."""

    def __init__(self, file: JsonFile, document: JsonObject, after: SecurityState) -> None:
        self._file = file
        self._document = document
        self.after = after
        self.saved = False

    def run(self) -> None:
        """Writes the file. After TroveError DISK_FULL or STORE_FAILED it is unchanged."""
        self._file.save(self._document)
        self.saved = True


class SecurityTable:
    """The present users, rules and quotas. Used by one thread.

    A change is begin(), run() of its result, and finish(); one change at a time.
    """

    def __init__(self, file: JsonFile, key: SealingKey, random_bytes: Callable[[int], bytes]) -> None:
        self._file = file
        self._key = key
        self._random_bytes = random_bytes
        self._sealed: dict[tuple[str, Secret], str] = {}
        self._rules: dict[str, SubjectRules] = {}
        self._change: SecurityChange | None = None
        self.state = SecurityState()
        """Is replaced by each change."""
        self.generation = object()
        """Is replaced with it. To remember this object keeps no users and rules of the past in memory."""

    @classmethod
    def load(cls, files: FileSystem, key: SealingKey, random_bytes: Callable[[int], bytes]) -> SecurityTable:
        """Reads the file; an empty table if there is none. TroveError STORE_FAILED, STORE_NEWER,
        SEALING_KEY_MISMATCH."""
        file = JsonFile(files, PATH, mirror=True, sealed=True)
        table = cls(file, key, random_bytes)
        document = file.load()
        if document is not None:
            try:
                table._read(document)
            except (ValueError, TypeError) as error:
                what = f"{PATH}: {error}: put it back from a backup of the store"
                raise TroveError(errors.STORE_FAILED, what, file=PATH) from error
        return table

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
        self._change = SecurityChange(self._file, self._document(after), after)
        return self._change

    def finish(self, change: SecurityChange) -> None:
        """Ends the change; to be called after run(), even if that failed."""
        assert change is self._change, "one change at a time"
        self._change = None
        if change.saved:
            self._set(change.after)

    def _set(self, state: SecurityState) -> None:
        by_subject: dict[str, list[Rule]] = {}
        for rule in state.rules.values():
            by_subject.setdefault(rule.subject, []).append(rule)
        self._rules = {subject: SubjectRules(rules) for subject, rules in by_subject.items()}
        self.state, self.generation = state, object()

    # --- as JSON ----------------------------------------------------------------------------------------
    def _document(self, state: SecurityState) -> JsonObject:
        self._sealed = {
            (user.access_key, secret): self._seal(user.access_key, secret)
            for user in state.users.values()
            for secret in user.secrets
        }
        return {
            "version": VERSION,
            "sealingKey": self._key.key_id,
            "users": {name: self._user_document(user) for name, user in sorted(state.users.items())},
            "rules": [_rule_document(rule) for _, rule in sorted(state.rules.items())],
            "nextRule": state.next_rule,
            "quotas": {subject: _quota_document(quota) for subject, quota in sorted(state.quotas.items())},
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

    def _read(self, document: JsonObject) -> None:
        """Reads the content of the file. Raises ValueError, TypeError, TroveError STORE_NEWER,
        SEALING_KEY_MISMATCH."""
        if integer_member(document, "version", 0) > VERSION:
            raise TroveError(errors.STORE_NEWER, f"{PATH} was written by a newer TroveMQ", file=PATH)
        key_id = document.get("sealingKey")
        if key_id != self._key.key_id:
            raise TroveError(
                errors.SEALING_KEY_MISMATCH,
                f"the secrets of {PATH} are sealed by another key than the key file has",
                file=PATH,
            )
        users = {
            name: self._read_user(name, object_member(object_member(document, "users"), name))
            for name in object_member(document, "users")
        }
        rules = document.get("rules")
        if not isinstance(rules, list) or len(rules) > RULES_MAX or len(users) > USERS_MAX:
            raise ValueError("it has no list of rules, or too much")
        read = [_read_rule(rule) for rule in rules]
        by_number = {rule.number: rule for rule in read}
        next_rule = integer_member(document, "nextRule", 0)
        if len(by_number) != len(read) or max(by_number, default=0) >= next_rule:
            raise ValueError("the numbers of its rules contradict each other")
        self._set(SecurityState(users, by_number, next_rule, _read_quotas(document)))

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


def _read_quotas(document: JsonObject) -> dict[str, Quota]:
    """The quotas; {} if the file was written before there were quotas."""
    quotas = object_member(document, "quotas")
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
