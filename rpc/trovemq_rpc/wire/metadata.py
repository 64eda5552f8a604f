"""Metadata: an application's values beside messages, as header fields (gRPC over HTTP/2, "Custom-Metadata").

| key            | value in Python        | on the wire                                                    |
|----------------|------------------------|----------------------------------------------------------------|
| ends with -bin | bytes                  | base64 without padding; several values may be joined by commas |
| every other    | str of printable ASCII | the same bytes                                                 |

Keys are lower-case letters, digits, `_`, `-` and `.`; those that begin with `grpc-` belong to gRPC.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from trovemq_rpc.http2.headers import Field

Value = str | bytes
Pair = tuple[str, Value]
MetadataLike = Iterable[Pair]

_KEY = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_RESERVED: Final = frozenset(
    (
        b"content-type",
        b"content-length",
        b"te",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-status",
        b"grpc-message",
        b"grpc-message-type",
        b"host",
    )
)
PAIRS_MAX: Final = 1_024  # remembered by the process; all are forgotten when there are more
PAIR_SIZE_MAX: Final = 256  # larger ones are rarely repeated: at most 256 KiB are remembered
_pairs: dict[Field, Pair] = {}
"""Pairs by their fields: most calls of a client repeat most of them."""
_NEVER_SENT: Final = frozenset(name.decode() for name in _RESERVED) | {"user-agent"}


class Metadata(Collection[Pair]):
    """Pairs in their order. As in grpc.aio.Metadata, `m[key]` is the first value of the key."""

    __slots__ = ("_pairs",)

    def __init__(self, *pairs: Pair) -> None:
        self._pairs: list[Pair] = list(pairs)

    @classmethod
    def from_tuple(cls, raw_metadata: Iterable[Pair] | None) -> Metadata:
        return cls(*(raw_metadata or ()))

    def add(self, key: str, value: Value) -> None:
        self._pairs.append((key, value))

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def __getitem__(self, key: str) -> Value:
        for name, value in self._pairs:
            if name == key:
                return value
        raise KeyError(key)

    def __setitem__(self, key: str, value: Value) -> None:
        for at, (name, _) in enumerate(self._pairs):
            if name == key:
                self._pairs[at] = (key, value)
                return
        self._pairs.append((key, value))

    def __delitem__(self, key: str) -> None:
        for at, (name, _) in enumerate(self._pairs):
            if name == key:
                del self._pairs[at]
                return
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        return next((value for name, value in self._pairs if name == key), default)

    def get_all(self, key: str) -> list[Value]:
        return [value for name, value in self._pairs if name == key]

    def set_all(self, key: str, values: list[Value]) -> None:
        self.delete_all(key)
        self._pairs.extend((key, value) for value in values)

    def delete_all(self, key: str) -> None:
        self._pairs = [pair for pair in self._pairs if pair[0] != key]

    def keys(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self._pairs))

    def values(self) -> list[Value]:
        return [value for _, value in self._pairs]

    def items(self) -> list[Pair]:
        return list(self._pairs)

    def __contains__(self, key: object) -> bool:
        return any(key in (name, (name, value)) for name, value in self._pairs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple | list | Metadata):
            return tuple(self) == tuple(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Iterable[Pair]) -> Metadata:
        return Metadata(*self, *other)

    def __repr__(self) -> str:
        return f"Metadata({tuple(self._pairs)!r})"


def encode_metadata(metadata: MetadataLike) -> list[Field]:
    """Header fields. ValueError names a pair that may not be sent."""
    fields: list[Field] = []
    for key, value in metadata:
        if not _KEY.fullmatch(key) or (key.startswith("grpc-") and key in _NEVER_SENT):
            raise ValueError(
                f"metadata key {key!r}: lower-case letters, digits, _ - . only, and no name of gRPC"
            )
        if key in _NEVER_SENT:
            continue
        if key.endswith("-bin"):
            raw = value if isinstance(value, bytes) else value.encode()
            fields.append((key.encode(), b2a_base64(raw, newline=False).rstrip(b"=")))
            continue
        text = value if isinstance(value, str) else value.decode("ascii", "replace")
        if not _VALUE.fullmatch(text):
            raise ValueError(
                f"metadata value of {key!r}: printable ASCII only; a key for bytes ends with -bin"
            )
        fields.append((key.encode(), text.strip(" ").encode()))
    return fields


def too_large_metadata(size: int, limit: int) -> str:
    """Says why headers or trailers were not sent (SETTINGS_MAX_HEADER_LIST_SIZE, RFC 9113 section 6.5.2)."""
    return f"metadata of {size} bytes were not sent: the peer takes at most {limit}; send less"


def decode_metadata(fields: Iterable[Field]) -> tuple[Pair, ...]:
    """The application's part of a header list."""
    pairs: list[Pair] = []
    for field in fields:
        known = _pairs.get(field)
        if known is not None:
            pairs.append(known)
            continue
        name, value = field
        if name in _RESERVED or name[:1] == b":":
            continue
        key = name.decode("ascii")
        if name.endswith(b"-bin"):
            pairs.extend((key, decode_binary(part)) for part in value.split(b","))
            continue
        pair = (key, value.decode("latin-1"))
        pairs.append(pair)
        if len(name) + len(value) <= PAIR_SIZE_MAX:
            if len(_pairs) >= PAIRS_MAX:
                _pairs.clear()
            _pairs[field] = pair
    return tuple(pairs)


def decode_binary(value: bytes) -> bytes:
    """Decodes base64, with padding or without. Malformed text becomes b"": the call continues."""
    try:
        return a2b_base64(value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4))
    except ValueError:
        return b""
