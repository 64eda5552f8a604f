"""Opens users and rules at the start of a broker: the key file, the table, the first super user.

Two files lie beside the store, not in it, so that no backup of the store has them (0600):

- the sealing key: 64 hex digits; created with the first users, whose secrets need it from then on
- the credentials of the first super user, in the form that clients read:

      access_key=admin
      secret_key=…

No secret is logged here or shown in an error.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.daemon.opening import clock_ms
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.security import changes
from trovemq_broker.security.audit_trail import AuditTrail
from trovemq_broker.security.quotas import Quotas
from trovemq_broker.security.sealing import KEY_SIZE, SealingKey, key_file_content
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.access.guard import AccessGuard
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_daemon.logging import get_logger
from trovemq_daemon.private_files import read_private, write_private
from trovemq_daemon.refusals import access_metrics
from trovemq_daemon.sessions import Sessions
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.audit import KINDS
from trovemq_proto.authentication.credentials import Credentials, credentials_text, parse_credentials
from trovemq_proto.authentication.scram import SALT_SIZE
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.security_entries import SECURITY_PATH, SecurityEntries

FIRST_USER: Final = "admin"
SECRET_BYTES: Final = 32
ROCKETMQ_USERS: Final = "config/auth"


def gate_of(settings: BrokerSettings) -> Gate | None:
    """The check of access; None without authentication."""
    if not settings.authentication_enable:
        return None
    return Gate(
        authorization=settings.authorization_enable,
        cluster=settings.cluster,
        clock_ms=clock_ms,
        certificates=settings.tls_client_identity,
    )


def access_of(gate: Gate | None, serving: ServingGate) -> Callable[[str, Any], Any]:
    """For a GrpcServer: gives each handler, by its path, with the checks before it, that of access first."""
    guard = None if gate is None else AccessGuard(gate, lambda: serving.checked_elsewhere)

    def access(path: str, handler: Any) -> Any:
        gated = serving.handler(path, handler)
        return gated if guard is None else guard.handler(path, gated)

    return access


def open_security(
    settings: BrokerSettings,
    store: MessageStore,
    gate: Gate,
    *,
    makes_first_user: bool = True,
    follows: bool = False,
) -> BrokerSecurity:
    """Blocks. `makes_first_user` False: another broker owns the cluster's configuration, and the users come
    with that; until then no client can log in. `follows`: the users are another node's; if they cannot be
    opened, the node keeps them, and the table has the reason (`problem`). TroveError SEALING_KEY_MISMATCH,
    USER_ILLEGAL, STORE_FAILED, DISK_FULL, STORE_NEWER."""
    if store.files.exists(ROCKETMQ_USERS):
        get_logger().warning("access.rocketmq_users_ignored", path=ROCKETMQ_USERS)
    entries = SecurityEntries.load(store.files) if store.security is None else store.security
    may_make = not entries.values
    if follows and not may_make and read_private(settings.sealing_key_path) is None:
        key = SealingKey(secrets.token_bytes(KEY_SIZE))  # another one than that of the users
    else:
        key = _sealing_key(settings.sealing_key_path, may_make=may_make)
    if follows:
        table = SecurityTable(entries, key, secrets.token_bytes)
        table.follow(entries)
    else:
        table = SecurityTable.of(entries, key, secrets.token_bytes)
        for credentials in _first_users(settings, table) if makes_first_user else ():
            _add(table, store, credentials)
    sessions = Sessions(table, key.derive(b"salts"), secrets.token_bytes)
    return BrokerSecurity(
        SecurityChanges(table),
        sessions,
        gate.audit,
        gate.admit_forwarded,
        gate.current_quotas,
        gate.flush_logs,
    )


def node_key(settings: BrokerSettings) -> SealingKey | None:
    """The key that all nodes of a replica group have, before the store is open; blocks. None without
    authentication. TroveError SEALING_KEY_MISMATCH, STORE_FAILED."""
    if not settings.authentication_enable:
        return None
    has_users = (settings.store_path / SECURITY_PATH).exists()
    return _sealing_key(settings.sealing_key_path, may_make=not has_users)


def _sealing_key(path: Path, *, may_make: bool) -> SealingKey:
    content = read_private(path)
    if content is None:
        if not may_make:
            raise TroveError(errors.SEALING_KEY_MISMATCH, f"there is no key file {path} (sealing_key_file)")
        content = _new_key(path)
    try:
        return SealingKey.parse(content)
    except ValueError as error:
        raise TroveError(errors.SEALING_KEY_MISMATCH, f"{path}: {error}") from None


def _new_key(path: Path) -> bytes:
    content = key_file_content(secrets.token_bytes(KEY_SIZE))
    try:
        write_private(path, content)
    except TroveError:
        made = read_private(path)  # by another node on this machine, meanwhile
        if made is None:
            raise
        return made
    get_logger().info("access.sealing_key_made", path=str(path))
    return content


def _first_users(settings: BrokerSettings, table: SecurityTable) -> list[Credentials]:
    """The first users: RocketMQ's initAuthenticationUser if it does not exist; else `admin`, in a store
    without users."""
    if settings.init_authentication_user:
        named = init_user(settings.init_authentication_user)
        return [] if table.user(named.access_key) else [named]
    if table.state.users:
        return []
    path = settings.admin_credentials_path
    content = read_private(path)
    if content is None:
        made = Credentials(FIRST_USER, secrets.token_urlsafe(SECRET_BYTES))
        write_private(path, credentials_text(made).encode())
        get_logger().info("access.admin_credentials_written", path=str(path), user=FIRST_USER)
        return [made]
    try:
        return [parse_credentials(content.decode())]
    except ValueError as error:
        raise TroveError(errors.USER_ILLEGAL, f"{path}: {error}") from None


def init_user(text: str) -> Credentials:
    """RocketMQ's JSON, `{"username": …, "password": …}`. TroveError USER_ILLEGAL, which does not show it."""
    try:
        value = msgspec.json.decode(text, type=dict[str, object])
        return Credentials(str(value["username"]), str(value["password"]))
    except (msgspec.DecodeError, KeyError, UnicodeError):
        raise TroveError(
            errors.USER_ILLEGAL, 'init_authentication_user is not {"username": …, "password": …}'
        ) from None


def _add(table: SecurityTable, store: MessageStore, credentials: Credentials) -> None:
    user = new_user(
        credentials.access_key,
        UserKind.SUPER,
        credentials.secret_key.encode(),
        salt=secrets.token_bytes(SALT_SIZE),
        now_ms=clock_ms(),
    )
    change = table.begin(changes.add_user(table.state, user))
    try:
        change.run()
        if change.logged:
            store.flush()
    finally:
        table.finish(change)
    get_logger().info("access.user_created", user=user.access_key, kind=str(user.kind))


class AccessCollector(Collector):
    """Refused calls by error, sessions, users and rules."""

    def __init__(self, gate: Gate, security: BrokerSecurity) -> None:
        self._gate = gate
        self._security = security

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from access_metrics(self._gate.refusals, len(self._security.sessions))
        yield from _quota_metrics(self._gate.current_quotas())
        yield from _audit_metrics(self._security.audit.trail)
        state = self._security.table.state
        for name, what, value in (
            ("trovemq_users", "Users.", len(state.users)),
            ("trovemq_access_rules", "Rules of access.", len(state.rules)),
            ("trovemq_quotas", "Quotas.", len(state.quotas)),
        ):
            yield GaugeMetricFamily(name, what, value=value)


def _audit_metrics(trail: AuditTrail | None) -> Iterator[Metric]:
    records = CounterMetricFamily(
        "trovemq_audit_records", "Audit records that were written.", labels=("kind",)
    )
    for kind in KINDS:
        records.add_metric((kind,), 0 if trail is None else trail.written[kind])
    yield records
    yield CounterMetricFamily(
        "trovemq_audit_failures",
        "Audit records that could not be written when they were due.",
        value=0 if trail is None else trail.failures,
    )


def _quota_metrics(quotas: Quotas) -> Iterator[Metric]:
    """The metrics of quotas, a sample for each quota that is set."""
    for name, what, counts in (
        ("trovemq_quota_slowed", "Requests that waited for a quota.", quotas.slowed),
        ("trovemq_quota_refused", "Requests and calls that a quota refused.", quotas.refused),
    ):
        counted = CounterMetricFamily(name, what, labels=("quota",))
        for subject, count in counts.items():
            counted.add_metric((subject,), count)
        yield counted
