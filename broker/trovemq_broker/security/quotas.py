"""Quotas: limits for users, addresses and clients. Calls beyond them are first slowed, then refused.

| subject          | counts                                                               |
|------------------|----------------------------------------------------------------------|
| User:alice       | calls of the user                                                    |
| User:*           | calls of each user without a separate quota                          |
| Address:10.0.0.7 | calls of all callers at the address                                  |
| Address:*        | calls of each address without its own quota; of IPv6, of each /64    |
| Client:billing-1 | calls with this client id (`x-mq-client-id`), for each user          |
| Client:*         | calls of each client id without a separate quota                     |

For a super user only a quota of that user counts, and only its rates, so that the last one cannot be
locked out. For a call without credentials, or with wrong ones, only quotas of its address count. Topics and
groups are counted for the user who created them: only quotas of users limit them.

All quotas that apply to a call count. Requests, bytes, and the event loop's time for queries are token
buckets with the tokens of one second. A call waits until the bucket has no debt; if that takes longer than
WAIT_MAX_MS it is refused. So one call may take more tokens than there are, and later calls wait for them: a
message that is larger than the bytes of a second passes. An open query counts as long as those before it
took: else all queries that begin together would pass.

Invariants
- The client ids of one user do not prevent that others are counted.
- Waiting calls are bounded: they wait for calls before them, for at most WAIT_MAX_MS.
- A change of the quotas keeps the counts of open calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Network
from typing import Final

from trovemq_daemon.peers import parse_source
from trovemq_daemon.users import check_access_key
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

WAIT_MAX_MS: Final = 1_000
USES_MAX: Final = 20_000  # the most users, addresses and clients that are counted at a time
CLIENTS_OF_USER_MAX: Final = 1_000  # of these, the most clients of one user, who chooses their ids
IDLE_CHECK_INTERVAL_MS: Final = 1_000  # between two searches for idle accounts
IPV6_PREFIX: Final = 64  # one network, whose owner chooses its addresses
LIMIT_MAX: Final = 1 << 50
QUERY_MS_FIRST: Final = 10.0  # for which an account's first query counts until it has ended
ANY: Final = "*"

_CLIENT: Final = re.compile(r"[!-~]{1,255}")


class RatedResource(IntEnum):
    """The resources with a rate. Only queries wait because of the time of queries."""

    REQUESTS = 0
    BYTES_IN = 1
    BYTES_OUT = 2
    QUERY_MS = 3


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one quota; 0: no limit. `calls_max`: open calls and streams; `connections_max`:
    connections with such calls, for an address all connections; `topics_max`, `groups_max`: existing ones
    that the user created; `query_ms_per_s`: the event loop's time for queries and listings."""

    requests_per_s: int = 0
    bytes_in_per_s: int = 0
    bytes_out_per_s: int = 0
    calls_max: int = 0
    connections_max: int = 0
    topics_max: int = 0
    groups_max: int = 0
    query_ms_per_s: int = 0

    def __post_init__(self) -> None:
        """TroveError REQUEST_ILLEGAL."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 <= value <= LIMIT_MAX:
                raise TroveError(errors.REQUEST_ILLEGAL, f"{name} {value} is not 0 to {LIMIT_MAX}")

    @property
    def rates(self) -> tuple[int, int, int, int]:
        """The limits, in the order of RatedResource."""
        return self.requests_per_s, self.bytes_in_per_s, self.bytes_out_per_s, self.query_ms_per_s

    def entries_max(self, noun: str) -> int:
        """The limit of topics or groups."""
        return self.topics_max if noun == "topic" else self.groups_max


LIMITS: Final = tuple(field.name for field in fields(Quota))


def check_subject(text: str) -> str:
    """The subject in its canonical form. TroveError REQUEST_ILLEGAL, USER_ILLEGAL."""
    kind, _, name = text.partition(":")
    known = {"user": "User", "address": "Address", "client": "Client"}.get(kind.lower())
    if known is None or not name:
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"{text[:80]!a} is not User:, Address: or Client: and a name or *"
        )
    if name == ANY:
        return f"{known}:{ANY}"
    if known == "User":
        return f"User:{check_access_key(name)}"
    if known == "Address":
        address = parse_source(name)
        if address is None:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{name[:80]!a} is not an IP address")
        return f"Address:{address}"
    if not _CLIENT.fullmatch(name):
        raise TroveError(errors.REQUEST_ILLEGAL, "a client id has 1 to 255 printable ASCII characters")
    return f"Client:{name}"


@lru_cache(maxsize=4_096)
def _network(source: str) -> str:
    """The name under which an address without a separate quota is counted."""
    address = parse_source(source)
    if address is None or address.version == 4:
        return source
    return str(IPv6Network((int(address), IPV6_PREFIX), strict=False))


class Use:
    """The account of one user, address or client."""

    __slots__ = (
        *("_at_ms", "_levels", "_limited", "_queries", "_query_ms", "_rates"),
        *("calls", "connections", "quota", "subject"),
    )

    def __init__(self, subject: str, quota: Quota, now_ms: EpochMs) -> None:
        self.calls = 0
        """The number of open calls."""
        self.connections: dict[str, int] = {}
        """The number of open calls by connection."""
        self._rates = (0, 0, 0, 0)
        self._levels = [0.0, 0.0, 0.0, 0.0]
        self._at_ms = now_ms
        self._queries = 0
        self._query_ms = QUERY_MS_FIRST
        self.give(subject, quota)

    def give(self, subject: str, quota: Quota) -> None:
        """Sets another quota from now on. Debts stay; a resource that had no rate has no debt."""
        self.subject = subject
        self.quota = quota
        before, self._rates = self._rates, quota.rates
        for index, rate in enumerate(self._rates):
            self._levels[index] = min(self._levels[index], rate) if before[index] else float(rate)
        self._limited = tuple(index for index, rate in enumerate(self._rates) if rate)

    def wait_ms(self, now_ms: EpochMs, *, is_query: bool = False) -> float:
        """The wait until there is no debt; the debt of queries counts only for a query."""
        self._fill(now_ms)
        wait_ms = 0.0
        for index in self._limited:
            level = self._levels[index]
            if index == RatedResource.QUERY_MS:
                if not is_query:
                    continue
                level -= self._queries * self._query_ms
            if level < 0:
                wait_ms = max(wait_ms, -level * 1_000 / self._rates[index])
        return wait_ms

    def take_request(self, size: int) -> None:
        """Charges the tokens of a request; to be called after wait_ms()."""
        self._levels[RatedResource.REQUESTS] -= 1
        self._levels[RatedResource.BYTES_IN] -= size

    def begin_query(self) -> None:
        """Counts a query that begins; end_query() is to be called when it has ended."""
        self._queries += 1

    def end_query(self, elapsed_ms: float) -> None:
        """The time that all of its steps took, in ms; 0 for one that was refused later."""
        self._queries -= 1
        if elapsed_ms:
            self._query_ms += (elapsed_ms - self._query_ms) / 2

    def take_query(self, elapsed_ms: float) -> None:
        """Charges the time of a step of a query, in ms."""
        self._levels[RatedResource.QUERY_MS] -= elapsed_ms

    def take_reply(self, size: int, now_ms: EpochMs) -> float:
        """Charges the bytes of a reply. Returns the ms until their debt is gone; a reply waits for no other
        resource."""
        if not self._rates[RatedResource.BYTES_OUT]:
            return 0.0
        self._fill(now_ms)
        self._levels[RatedResource.BYTES_OUT] -= size
        return max(0.0, -self._levels[RatedResource.BYTES_OUT] * 1_000 / self._rates[RatedResource.BYTES_OUT])

    def is_idle(self, now_ms: EpochMs) -> bool:
        """Whether the account may be forgotten without an effect."""
        self._fill(now_ms)
        return not self.calls and all(self._levels[index] >= self._rates[index] for index in self._limited)

    def _fill(self, now_ms: EpochMs) -> None:
        """Adds the tokens of the time that has passed; none if the clock was set back."""
        elapsed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if elapsed_ms <= 0:
            return
        for index in self._limited:
            rate = self._rates[index]
            level = self._levels[index] + rate * elapsed_ms / 1_000
            self._levels[index] = level if level < rate else float(rate)

    def open(self, connection: str) -> None:
        self.calls += 1
        self.connections[connection] = self.connections.get(connection, 0) + 1

    def close(self, connection: str) -> None:
        self.calls -= 1
        remaining = self.connections.pop(connection) - 1
        if remaining:
            self.connections[connection] = remaining

    def excess(self, connection: str) -> str:
        """The reason why the quota allows no further call of the connection; empty if it allows one."""
        quota = self.quota
        if quota.calls_max and self.calls >= quota.calls_max:
            return f"{self.calls} calls and streams are open"
        new = connection not in self.connections
        if quota.connections_max and new and len(self.connections) >= quota.connections_max:
            return f"{len(self.connections)} connections have open calls"
        return ""


class Quotas:
    """The quotas of one broker and the accounts of their subjects."""

    def __init__(self) -> None:
        self._quotas: Mapping[str, Quota] = {}
        self._uses: dict[tuple[str, ...], Use] = {}
        self._clients_of: Counter[str] = Counter()
        """The number of clients in _uses by user."""
        self._idle_checked_ms = -IDLE_CHECK_INTERVAL_MS
        self._connections: Counter[str] = Counter()
        """The number of open connections, by address and by the network of an address."""
        self.version = 0
        """Is raised with each change."""
        self.slowed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Refused calls and messages, by the quota's subject."""

    def set(self, quotas: Mapping[str, Quota]) -> None:
        """Sets the quotas from the next call on; debts stay."""
        if quotas is self._quotas:
            return
        self._quotas = quotas
        self.version += 1
        for key in list(self._uses):
            subject = self._subject(key[0], key[-1], may_be_any=True)
            if subject is not None:
                self._uses[key].give(subject, quotas[subject])
            elif not self._uses[key].calls:
                self._forget(key)
            else:
                self._uses[key].give(self._uses[key].subject, Quota())
        for counts in (self.slowed, self.refused):
            for subject in counts.keys() - quotas.keys():
                del counts[subject]

    def open_calls(self) -> Counter[str]:
        """The number of open calls by the quota's subject."""
        found: Counter[str] = Counter()
        for use in self._uses.values():
            found[use.subject] += use.calls
        return found

    def _subject(self, kind: str, name: str, *, may_be_any: bool) -> str | None:
        own, every = f"{kind}:{name}", f"{kind}:{ANY}"
        if own in self._quotas:
            return own
        return every if may_be_any and every in self._quotas else None

    def uses(
        self, access_key: str, *, is_super: bool, source: str, client_id: str, now_ms: EpochMs
    ) -> tuple[Use, ...]:
        """The accounts of the quotas that apply to a call. Raises TroveError LIMIT_EXCEEDED if too many are
        counted."""
        if not self._quotas:
            return ()
        own: tuple[str, ...] = ("User", access_key)
        asked = (own,) if is_super else (own, ("Address", source), ("Client", access_key, client_id))
        return tuple(
            self._use(key, subject, now_ms)
            for key in asked
            if key[-1] and (subject := self._subject(key[0], key[-1], may_be_any=not is_super)) is not None
        )

    def uses_of_address(self, source: str, now_ms: EpochMs) -> tuple[Use, ...]:
        """The accounts for a call whose caller is unknown. Raises TroveError LIMIT_EXCEEDED."""
        subject = self._subject("Address", source, may_be_any=True) if source else None
        return () if subject is None else (self._use(("Address", source), subject, now_ms),)

    def _use(self, key: tuple[str, ...], subject: str, now_ms: EpochMs) -> Use:
        if subject == f"Address:{ANY}":
            key = ("Address", _network(key[-1]))
        use = self._uses.get(key)
        if use is None:
            if len(self._uses) >= USES_MAX or self._clients_of[key[1]] >= CLIENTS_OF_USER_MAX:
                self._forget_idle(key, now_ms)
            use = self._uses[key] = Use(subject, self._quotas[subject], now_ms)
            if key[0] == "Client":
                self._clients_of[key[1]] += 1
        return use

    def _forget(self, key: tuple[str, ...]) -> None:
        del self._uses[key]
        if key[0] == "Client":
            self._clients_of[key[1]] -= 1
            if not self._clients_of[key[1]]:
                del self._clients_of[key[1]]

    def _forget_idle(self, wanted: tuple[str, ...], now_ms: EpochMs) -> None:
        """Forgets idle accounts; at most once per IDLE_CHECK_INTERVAL_MS, because it examines all of them.
        TroveError LIMIT_EXCEEDED if there is still no space for the wanted account."""
        if not 0 <= now_ms - self._idle_checked_ms < IDLE_CHECK_INTERVAL_MS:
            self._idle_checked_ms = now_ms
            for key in [key for key, use in self._uses.items() if use.is_idle(now_ms)]:
                self._forget(key)
        if wanted[0] == "Client" and self._clients_of[wanted[1]] >= CLIENTS_OF_USER_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"more than {CLIENTS_OF_USER_MAX} clients of {wanted[1]} call at once"
            )
        if len(self._uses) >= USES_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"more than {USES_MAX} users, addresses and clients call at once"
            )

    # --- connections ----------------------------------------------------------------------------------
    def connection_opened(self, source: str) -> bool:
        """Whether the address may have another connection. If so, it counts until connection_closed()."""
        subject = self._subject("Address", source, may_be_any=True) if source else None
        limit = 0 if subject is None else self._quotas[subject].connections_max
        name = _network(source)
        count = self._connections[name if subject == f"Address:{ANY}" else source]
        if subject is not None and limit and count >= limit:
            self.refused[subject] += 1
            return False
        self._connections.update({source, name})
        return True

    def connection_closed(self, source: str) -> None:
        for name in {source, _network(source)}:
            self._connections[name] -= 1
            if not self._connections[name]:
                del self._connections[name]

    # --- calls ----------------------------------------------------------------------------------------
    def open_call(self, uses: Iterable[Use], connection: str) -> None:
        """Counts an open call until close_call(). After TroveError LIMIT_EXCEEDED it does not count."""
        for use in uses:
            excess = use.excess(connection)
            if excess:
                self.refused[use.subject] += 1
                raise _exceeded(use, excess, WAIT_MAX_MS)
        for use in uses:
            use.open(connection)

    def close_call(self, uses: Iterable[Use], connection: str) -> None:
        for use in uses:
            use.close(connection)

    def move_call(self, before: Iterable[Use], now: Iterable[Use], connection: str) -> None:
        """Moves an open call to other quotas: it counts there even beyond their limits."""
        self.close_call(before, connection)
        for use in now:
            use.open(connection)

    def check_entries(self, access_key: str, noun: str, count: int, *, is_super: bool) -> None:
        """Raises TroveError LIMIT_EXCEEDED if a user with `count` existing topics (or groups) may not create
        another one."""
        subject = self._subject("User", access_key, may_be_any=not is_super)
        limit = 0 if subject is None else self._quotas[subject].entries_max(noun)
        if subject is not None and limit and count >= limit:
            self.refused[subject] += 1
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"quota of {subject}: {access_key} created {count} existing {noun}s; delete some first",
                quota=subject,
            )

    def take_query(self, uses: Iterable[Use], elapsed_ms: float) -> None:
        """Charges the time of a query, in ms: later queries wait for it."""
        for use in uses:
            use.take_query(elapsed_ms)

    def take_request(
        self, uses: Iterable[Use], size: int, now_ms: EpochMs, *, is_query: bool = False
    ) -> float:
        """Charges the tokens of a request. Returns for how many ms it must wait. After TroveError
        LIMIT_EXCEEDED nothing is charged."""
        wait_ms = self.wait_ms(uses, now_ms, is_query=is_query)
        for use in uses:
            use.take_request(size)
        return wait_ms

    def wait_ms(self, uses: Iterable[Use], now_ms: EpochMs, *, is_query: bool) -> float:
        """For how many ms a request, or a query, must wait. TroveError LIMIT_EXCEEDED."""
        wait_ms, longest = 0.0, None
        for use in uses:
            own_ms = use.wait_ms(now_ms, is_query=is_query)
            if own_ms > wait_ms:
                wait_ms, longest = own_ms, use
        if longest is not None:
            if wait_ms > WAIT_MAX_MS:
                self.refused[longest.subject] += 1
                raise _exceeded(longest, "its rates are exceeded", wait_ms)
            self.slowed[longest.subject] += 1
        return wait_ms

    def take_reply(self, uses: Iterable[Use], size: int, now_ms: EpochMs) -> float:
        """Charges the bytes of a reply. Returns for how many ms the stream's next reply must wait."""
        return max((use.take_reply(size, now_ms) for use in uses), default=0.0)


def _exceeded(use: Use, reason: str, retry_after_ms: float) -> TroveError:
    what = f"quota of {use.subject}: {reason}; try again in {retry_after_ms:.0f} ms"
    return TroveError(errors.LIMIT_EXCEEDED, what, quota=use.subject, retry_after_ms=int(retry_after_ms))
