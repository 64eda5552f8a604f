"""The caller of a call, and the decision about it: `trovemq_broker.security` with the clock, the peer and the
counters.

| credentials of a call                   | accepted                                                     |
|-----------------------------------------|--------------------------------------------------------------|
| `trovemq-auth-bin`: a session's         | on every connection and for every service                    |
| `authorization`: RocketMQ's signature   | RocketMQ's services; on loopback, or over TLS                |
| a client's certificate, none of these   | every service, if `tls_client_identity` is on                |
| none                                    | for OPEN rows                                                |

Before `open()` every call is refused. A unary call is admitted for its request; each message of a stream is
admitted separately, so a withdrawn permission ends with the next message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Final, Protocol

from trovemq_broker.security.actions import Action, Kind, Resource, action_text
from trovemq_broker.security.quotas import Quotas, Use
from trovemq_broker.security.rocketmq import SignatureChecker
from trovemq_broker.security.rules import SubjectRules
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.audit import AuditLog
from trovemq_broker.server.access.needs import EVERY, KNOW, THIS_CLUSTER, Level, Need, Needs, Row
from trovemq_broker.server.access.producer_ids import is_own
from trovemq_broker.server.access.refusals import is_rocketmq
from trovemq_broker.server.wire.statuses import CLIENT_ID_KEY, CLIENT_ID_SIZE_MAX
from trovemq_daemon.peers import Peer, peer_of
from trovemq_daemon.refusals import Refusals
from trovemq_daemon.sessions import SessionCall, Sessions
from trovemq_daemon.slow_requests import REFUSAL, add_wait
from trovemq_daemon.users import User
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.authentication.calls import METADATA_KEY
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import CALLER_KEY, PEER_KEY, signed_path
from trovemq_proto.positions import EpochMs
from trovemq_store.topics.creators import Creator

HOLD_S: Final = 1.0
HOLD_GROWTH_MAX: Final = 4
HELD_FEW: Final = 8  # calls of one caller that are delayed at a time before delays grow
DEADLINE_MARGIN_S: Final = 1.0  # before the caller's deadline, at which a longer delay ends
HOLD_STEP_S: Final = 0.005  # longer than a refused call takes the loop
HELD_MAX: Final = 512  # of one caller: each is one of the open calls, whose number is limited
_GOLDEN: Final = 0.6180339887498949  # its multiples, less their whole parts, lie evenly between 0 and 1
AUTHORIZATION_KEY: Final = "authorization"
DATE_KEY: Final = "x-mq-date-time"
_READ_KEYS: Final = (METADATA_KEY, AUTHORIZATION_KEY, DATE_KEY, PEER_KEY, CALLER_KEY)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a call, checked as far as possible without the connection."""

    path: str
    session_call: SessionCall | None = None
    authorization: str = field(default="", repr=False)
    date: str = ""
    client_id: str = ""
    fault: TroveError | None = None
    client: tuple[str, str] | None = None
    """The user and the address of the client for which a node calls its leader."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a call. `session_call` None: it has RocketMQ's signature, or a certificate. `access_key`
    empty: a call without credentials, or with wrong ones. `through`: the user and the address of a node that
    has forwarded the call, else empty: the caller is who that user said."""

    access_key: str
    source: str
    session_call: SessionCall | None
    through: str = ""

    @property
    def audited_source(self) -> str:
        """Of the log and the audit."""
        return f"{self.source} through {self.through}" if self.through else self.source


class Entries(Protocol):
    """The table of topics, or that of groups."""

    def __contains__(self, name: str) -> bool: ...

    def made_by(self, creator: str) -> int: ...


class CallQuota:
    """The accounts of one call. A change of the quotas counts from its next message on."""

    def __init__(self, gate: Gate, caller: Caller, client_id: str, connection: str, *, is_open: bool) -> None:
        """Raises TroveError LIMIT_EXCEEDED if too many calls are open, unless this one `is_open` already."""
        self._gate = gate
        self._caller = caller
        self._client_id = client_id
        self._connection = connection
        self._uses: tuple[Use, ...] = ()
        self._query_uses: tuple[Use, ...] = ()
        self._query_ms = 0.0
        uses = gate.uses(caller, client_id)
        if is_open:
            gate.quotas.move_call((), uses, connection)
        else:
            gate.quotas.open_call(uses, connection)
        self._uses, self._version = uses, gate.quotas.version

    def _current(self) -> tuple[Use, ...]:
        quotas = self._gate.current_quotas()
        if quotas.version != self._version:
            before, self._uses = self._uses, self._gate.uses(self._caller, self._client_id)
            quotas.move_call(before, self._uses, self._connection)
            self._version = quotas.version
        return self._uses

    async def request(self, size: int, *, is_query: bool = False) -> TroveError | None:
        """Waits for the quotas; returns the refusal if that would take too long. Raises TroveError
        AUTHENTICATION_FAILED."""
        uses = self._current()
        try:
            wait_ms = self._gate.quotas.take_request(uses, size, self._gate.now_ms(), is_query=is_query)
        except TroveError as error:
            return error
        if is_query:
            self._begin_query(uses)
        await _wait(wait_ms)
        return None

    async def query(self) -> None:
        """For a query of a request that was charged already: waits for the quota of queries. TroveError
        LIMIT_EXCEEDED, AUTHENTICATION_FAILED."""
        uses = self._current()
        wait_ms = self._gate.quotas.wait_ms(uses, self._gate.now_ms(), is_query=True)
        self._begin_query(uses)
        await _wait(wait_ms)

    def _begin_query(self, uses: tuple[Use, ...]) -> None:
        assert not self._query_uses, "a call is one query"
        self._query_uses = uses
        for use in uses:
            use.begin_query()

    def worked(self, elapsed_s: float) -> None:
        """Counts the time of a step of the call's query."""
        self._query_ms += elapsed_s * 1_000
        self._gate.quotas.take_query(self._uses, elapsed_s * 1_000)

    def reply(self, size: int) -> float:
        """Counts a reply. Returns the seconds that the stream's next one must wait."""
        return self._gate.quotas.take_reply(self._uses, size, self._gate.now_ms()) / 1_000

    def end(self) -> None:
        self._gate.quotas.close_call(self._uses, self._connection)
        for use in self._query_uses:
            use.end_query(self._query_ms)
        self._uses = self._query_uses = ()


async def _wait(wait_ms: float) -> None:
    """Waits for a quota."""
    if wait_ms > 0:
        add_wait("quota", wait_ms)
        await asyncio.sleep(wait_ms / 1_000)


class Gate:
    """The check of access of one broker. For use on the event loop only."""

    def __init__(
        self,
        *,
        authorization: bool,
        cluster: str,
        clock_ms: Callable[[], EpochMs],
        certificates: bool = False,
    ) -> None:
        """`certificates`: a client's certificate identifies it."""
        self._authorization = authorization
        self._certificates = certificates
        self._cluster = cluster
        self._clock_ms = clock_ms
        self._entries: Mapping[str, Entries] = {}
        self._held: dict[str, set[int]] = {}  # the steps of time at which delayed refusals end
        self._holds = 0
        self._table: SecurityTable | None = None
        self._sessions: Sessions | None = None
        self._signatures: SignatureChecker | None = None
        self.refusals: Final = Refusals()
        self.audit: Final = AuditLog(clock_ms)
        self.quotas: Final = Quotas()

    def open(
        self, table: SecurityTable, sessions: Sessions, entries: Mapping[str, Entries] | None = None
    ) -> None:
        """Sets users and rules: from now on callers are admitted. `entries`: the tables by `topic` and
        `group`."""
        self._table, self._sessions, self._entries = table, sessions, entries or {}
        self._signatures = SignatureChecker(table)

    def users(self) -> SecurityTable:
        """TroveError SERVICE_NOT_AVAILABLE before open(), AUTHENTICATION_FAILED where there is no user."""
        if self._table is None:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is starting")
        self._table.check_users()
        return self._table

    # --- callers ------------------------------------------------------------------------------------
    def credentials(self, path: str, metadata: Iterable[tuple[str, str | bytes]]) -> Credentials:
        """The credentials in the metadata; never raises. The number of a session's call is used here,
        once."""
        found: dict[str, str | bytes] = {}
        client_id = ""
        for key, value in metadata:
            if key == CLIENT_ID_KEY:
                client_id = str(value)[:CLIENT_ID_SIZE_MAX]
            elif key in _READ_KEYS:
                if key in found:
                    return Credentials(path, fault=_failed(f"{key} is there twice"))
                found[key] = value
        try:
            return self._read(path, found, client_id)
        except TroveError as error:
            return Credentials(path, fault=error)

    def _read(self, path: str, found: Mapping[str, str | bytes], client_id: str) -> Credentials:
        signed = found.get(METADATA_KEY)
        if signed is not None:
            if self._sessions is None:
                raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is starting")
            credential = signed if isinstance(signed, bytes) else signed.encode("latin-1", "replace")
            client = _client_of(path, found)
            signed_for = path if client is None else signed_path(path, client[1], client[0])
            call = self._sessions.call(credential, signed_for, self._clock_ms())
            return Credentials(path, call, client_id=client_id, client=client)
        if not is_rocketmq(path):
            return Credentials(path, client_id=client_id)
        signed_by, date = str(found.get(AUTHORIZATION_KEY, "")), str(found.get(DATE_KEY, ""))
        return Credentials(path, None, signed_by, date, client_id)

    def caller(self, credentials: Credentials, peer: Peer) -> Caller:
        """TroveError AUTHENTICATION_FAILED, SERVICE_NOT_AVAILABLE."""
        if credentials.fault is not None:
            raise credentials.fault
        call = credentials.session_call
        if call is not None:
            if credentials.client is not None:
                return self._for_client(call, *credentials.client, peer)
            return Caller(call.session.access_key, peer.source, call)
        if self._signatures is None or self._table is None:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is starting")
        self._table.check_users()
        if not credentials.authorization and self._certificates and peer.certificate_name:
            return self._by_certificate(peer)
        if not is_rocketmq(credentials.path):
            raise _failed("the call has no credentials: this broker asks for an access key and a secret")
        if not peer.is_private:
            raise _failed("signatures of RocketMQ's clients are accepted over TLS, or on loopback")
        user = self._signatures.user_of(credentials.authorization, credentials.date)
        return Caller(user.access_key, peer.source, None)

    def _for_client(self, call: SessionCall, access_key: str, client: str, peer: Peer) -> Caller:
        """The client, at that address, whose call a node of the replica group has forwarded. TroveError
        ACCESS_DENIED: with AUTHENTICATION_FAILED the node would log in again."""
        assert self._sessions is not None, "it has found the session"
        assert self._table is not None, "a caller comes after open()"
        node = self._sessions.user_of(call.session)
        if not node.is_super:
            raise TroveError(errors.ACCESS_DENIED, f"{node.access_key} may not call for other users")
        user = self._table.user(access_key)
        if user is None or not user.enabled:
            what = f"the call is refused: user {access_key[:80]!a} is not known here, or disabled"
            raise TroveError(errors.ACCESS_DENIED, what)
        through = f"{node.access_key} at {peer.source}"
        return Caller(access_key, peer_of(client, {}).source, None, through)

    def _by_certificate(self, peer: Peer) -> Caller:
        """The caller with a certificate, which the transport has verified. TroveError
        AUTHENTICATION_FAILED."""
        assert self._table is not None, "a caller comes after open()"
        user = self._table.user(peer.certificate_name)
        if user is None or not user.enabled:
            name = peer.certificate_name[:80]
            raise _failed(
                f"the certificate's common name {name!a} is no user's access key, or a disabled one's"
            )
        return Caller(user.access_key, peer.source, None)

    def user_of(self, caller: Caller) -> User:
        """The present state of the user. Raises TroveError AUTHENTICATION_FAILED if it may no longer call."""
        assert self._sessions is not None, "a caller comes after open()"
        assert self._table is not None, "a caller comes after open()"
        if caller.session_call is not None:
            return self._sessions.user_of(caller.session_call.session)
        user = self._table.user(caller.access_key)
        if user is None or not user.enabled:
            raise _failed("the user is disabled")
        return user

    @property
    def generation(self) -> object:
        """The generation of users, rules and quotas. Each change replaces the object: with the same one an
        admitted request is admitted again."""
        assert self._table is not None, "a caller comes after open()"
        return self._table.generation

    # --- permissions ----------------------------------------------------------------------------------
    def admit(self, caller: Caller, row: Row, request: Any, path: str = "") -> None:
        """Admits a request. Raises TroveError ACCESS_DENIED, AUTHENTICATION_FAILED, LIMIT_EXCEEDED, and the
        errors of the row's needs for illegal names."""
        user = self.user_of(caller)
        if row.needs is Level.USER:
            return
        if row.needs is Level.SUPER:
            if not user.is_super:
                raise TroveError(errors.ACCESS_DENIED, f"{user.access_key} is not a super user")
            return
        assert callable(row.needs), "OPEN rows have no gate"
        if user.is_super or not self._authorization:
            if _names_audit_topic(row.needs, request):
                self._admit_to_audit(user, caller, path)
        else:
            for need in row.needs(request):
                if _is_audit_topic(need):
                    self._admit_to_audit(user, caller, path)
                elif not self._meets(user, need, caller.source):
                    raise _denied(user, self._named(need))
        if row.creates is not None and self.has_quotas:
            self._check_creation(user, *row.creates(request))
        if row.producers is not None:
            self.check_producers(caller, row.producers(request))

    def admit_forwarded(self, user: str, source: str, row: Row, request: Any, path: str) -> None:
        """admit() for the call of a user that another broker has forwarded, whose rules may be older than
        those here; a refusal is counted here, too."""
        try:
            self.admit(Caller(user, source, None), row, request, path)
        except TroveError as error:
            self.refused(path, error, source, user)
            raise

    def check_producers(self, caller: Caller, producers: Iterable[str]) -> None:
        """Raises TroveError ACCESS_DENIED if one of a request's producer ids is another user's."""
        if not producers or (user := self.user_of(caller)).is_super:
            return
        for producer in producers:
            if not is_own(producer, user.access_key):
                raise _foreign(user, producer)

    def _check_creation(self, user: User, noun: str, name: str) -> None:
        """Refuses a creation that the table would refuse, before it is audited: so a storm of creations does
        not cost a write each. TroveError LIMIT_EXCEEDED."""
        table = self._entries.get(noun)
        if table is not None and name not in table:
            count = table.made_by(user.access_key)
            self.current_quotas().check_entries(user.access_key, noun, count, is_super=user.is_super)

    def _admit_to_audit(self, user: User, caller: Caller, path: str) -> None:
        """Checks the permission for the topic of the audit records, which a rule for all topics does not
        include. Raises TroveError ACCESS_DENIED."""
        need = Need(Kind.TOPIC, AUDIT_TOPIC, Action.AUDIT)
        if not user.is_super and not self._meets(user, need, caller.source):
            raise _denied(user, need)
        self.audit.audit_read(path, caller.access_key, caller.audited_source)

    def may_see(self, caller: Caller) -> Callable[[Kind, str], bool] | None:
        """A test whether the caller may know that a resource exists; None: it may know all.
        Raises TroveError AUTHENTICATION_FAILED."""
        user = self.user_of(caller)
        if user.is_super or not self._authorization:
            return None
        rules = self._rules(user)
        return lambda kind, name: rules.allowed(Resource(kind, name), _known_by(kind, name), caller.source)

    def _meets(self, user: User, need: Need, source: str) -> bool:
        need = self._named(need)
        if need.name == EVERY:
            return self._rules(user).allowed_everywhere(need.kind, need.actions, source)
        return self._rules(user).allowed(Resource(need.kind, need.name), need.actions, source)

    def _named(self, need: Need) -> Need:
        if need.kind is Kind.CLUSTER and need.name == THIS_CLUSTER:
            return need._replace(name=self._cluster)
        return need

    def _rules(self, user: User) -> SubjectRules:
        assert self._table is not None, "a caller comes after open()"
        return self._table.rules(user.access_key)

    # --- quotas ---------------------------------------------------------------------------------------
    @property
    def has_quotas(self) -> bool:
        return self._table is not None and bool(self._table.state.quotas)

    def quota_of(
        self, caller: Caller, client_id: str, connection: str, *, is_open: bool = False
    ) -> CallQuota | None:
        """The accounts of the call; None if there are no quotas. CallQuota.end() must be called later. Raises
        TroveError LIMIT_EXCEEDED, but not for a call that `is_open` already."""
        if not self.has_quotas:
            return None
        return CallQuota(self, caller, client_id, connection, is_open=is_open)

    def uses(self, caller: Caller, client_id: str) -> tuple[Use, ...]:
        """The accounts of the quotas that now apply to a call. TroveError LIMIT_EXCEEDED,
        AUTHENTICATION_FAILED."""
        if not caller.access_key:
            return self.current_quotas().uses_of_address(caller.source, self._clock_ms())
        return self.current_quotas().uses(
            caller.access_key,
            is_super=self.user_of(caller).is_super,
            source=caller.source,
            client_id=client_id,
            now_ms=self._clock_ms(),
        )

    def creator(self, caller: Caller) -> Creator:
        """The creator of the topics and groups that the call creates."""
        return Creator(caller.access_key, partial(self._check_entries, caller))

    def _check_entries(self, caller: Caller, noun: str, count: int) -> None:
        """TroveError LIMIT_EXCEEDED, AUTHENTICATION_FAILED."""
        if self.has_quotas:
            is_super = self.user_of(caller).is_super
            self.current_quotas().check_entries(caller.access_key, noun, count, is_super=is_super)

    def current_quotas(self) -> Quotas:
        """The quotas, updated if the table has changed."""
        if self._table is not None:
            self.quotas.set(self._table.state.quotas)
        return self.quotas

    async def hold(self, error: BaseException, who: str, time_remaining: Callable[[], float | None]) -> None:
        """Delays the refusal of a call above a quota, so that a caller who tries again at once is slowed: by
        HOLD_S to twice as long, because refusals that end together would take the loop from others; by up to
        HOLD_GROWTH_MAX times as long if many calls of `who` are delayed, as long as the caller waits
        (`time_remaining()`, in s; None: for ever). Returns at once for other errors, and if too many calls of
        `who` are already delayed. No two refusals of `who` end within HOLD_STEP_S: a request of another
        caller meets one of them at most."""
        if not isinstance(error, TroveError) or "quota" not in error.fields:
            return
        held = self._held.setdefault(who, set())
        if len(held) >= HELD_MAX:
            return
        self._holds += 1
        hold_s = HOLD_S * (1 + self._holds * _GOLDEN % 1)
        grown_s = hold_s * min(HOLD_GROWTH_MAX, (len(held) + 1) / HELD_FEW)
        remaining_s = time_remaining()
        if remaining_s is not None:
            grown_s = min(grown_s, remaining_s - DEADLINE_MARGIN_S)
        now_s = asyncio.get_running_loop().time()
        step = ceil((now_s + max(hold_s, grown_s)) / HOLD_STEP_S)
        while step in held:
            step -= 1
        held.add(step)
        try:
            delay_s = max(0.0, step * HOLD_STEP_S - now_s)
            add_wait(REFUSAL, delay_s * 1_000)
            await asyncio.sleep(delay_s)
        finally:
            held.discard(step)
            if not held:
                self._held.pop(who, None)

    # --- connections, as our own transport counts them ------------------------------------------------
    def opened(self, peer: str) -> bool:
        """Whether the address may have another connection. `peer`: gRPC's name."""
        return self.current_quotas().connection_opened(peer_of(peer, {}).source)

    def closed(self, peer: str) -> None:
        self.quotas.connection_closed(peer_of(peer, {}).source)

    def now_ms(self) -> EpochMs:
        return self._clock_ms()

    # --- the log --------------------------------------------------------------------------------------
    def flush_logs(self) -> None:
        """Logs the counts of minutes that have ended; to be called about every minute."""
        self.audit.flush()
        self.refusals.log.flush(self._clock_ms())

    # --- refusals -------------------------------------------------------------------------------------
    def refused(self, path: str, error: TroveError, source: str, access_key: str = "") -> None:
        """Counts a refusal, and logs it once a minute, without credentials."""
        self.refusals.add(path, error, source, access_key, self._clock_ms())
        self.audit.denied(path, error, source, access_key)


def _is_audit_topic(need: Need) -> bool:
    return need.kind is Kind.TOPIC and need.name == AUDIT_TOPIC


def _names_audit_topic(needs: Needs, request: Any) -> bool:
    try:
        return any(map(_is_audit_topic, needs(request)))
    except TroveError:
        return False  # an illegal name: the service reports it


def _known_by(kind: Kind, name: str) -> Action:
    """The actions each of which allows a caller to know that the resource exists."""
    return Action.AUDIT if kind is Kind.TOPIC and name == AUDIT_TOPIC else KNOW


def _client_of(path: str, found: Mapping[str, str | bytes]) -> tuple[str, str] | None:
    """The client of a native call that a node has forwarded: its user and its address."""
    if PEER_KEY not in found or is_rocketmq(path):
        return None
    caller = found.get(CALLER_KEY, b"")
    text = caller if isinstance(caller, str) else caller.decode("utf-8", "replace")
    return text, str(found[PEER_KEY])


def _failed(message: str) -> TroveError:
    return TroveError(errors.AUTHENTICATION_FAILED, message)


def _foreign(user: User, producer: str) -> TroveError:
    own = f"{user.access_key}:{producer.rpartition(':')[2][:64]}"
    what = f"producer id {producer[:160]!a} is not one of {user.access_key}, whose ids are as {own!a}"
    return TroveError(errors.ACCESS_DENIED, what)


def _denied(user: User, need: Need) -> TroveError:
    what = f"all of {need.kind}" if need.name == EVERY else str(Resource(need.kind, need.name[:160]))
    names = action_text(need.actions).replace(",", " or ")
    return TroveError(errors.ACCESS_DENIED, f"{user.access_key} may not {names} on {what!a}")
