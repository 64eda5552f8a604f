"""The header of a frame: JSON, or RocketMQ's binary form.

The binary form (serialisation 1):

| bytes | field |
| --- | --- |
| 2 | code |
| 1 | language |
| 2 | version: index of RocketMQ's release |
| 4 | opaque |
| 4 | flag: bit 0 a response, bit 1 one-way |
| 4 + n | remark; n = 0: none |
| 4 + n | fields, each: 2 + n the name, 4 + n the value |

Numbers are big-endian and signed, the language is not. A frame names its own form; both may be mixed on one
connection. Facts: org.apache.rocketmq.remoting.protocol.RocketMQSerializable and RemotingCommand, 5.4.0.

Limits: FIELDS_MAX fields. The frame's own limit bounds the bytes (frame.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, Literal, TypeAlias

import msgspec

from trovemq_proto.remoting.errors import FrameError

Form: TypeAlias = Literal[0, 1]
JSON: Final[Form] = 0
BINARY: Final[Form] = 1
IS_RESPONSE: Final = 1
IS_ONE_WAY: Final = 2
FIELDS_MAX: Final = 256
"""RocketMQ's requests have 20 at most; clients may add others."""
INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
OTHER: Final = "OTHER"
_HEAD: Final = Struct(">hBhii")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")


class Header(msgspec.Struct, rename={"fields": "extFields"}, omit_defaults=True):
    """`fields` are texts, as they came: signatures are of these."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = OTHER
    version: int = 0
    remark: str = ""
    fields: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & IS_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & IS_ONE_WAY)


Scalar: TypeAlias = str | int | float | bool | None


class _JsonHeader(msgspec.Struct, rename={"fields": "extFields"}):
    """As peers write it: absent and null members, and fields that are no text."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str | None = OTHER
    version: int = 0
    remark: str | None = None
    fields: dict[str, Scalar] | None = None


_STRICT: Final = msgspec.json.Decoder(Header)
_LENIENT: Final = msgspec.json.Decoder(_JsonHeader)
_ENCODER: Final = msgspec.json.Encoder()


def decode_header(form: int, data: memoryview) -> Header:
    """FrameError: it does not parse, or breaks a limit."""
    if form == JSON:
        return _checked(_decode_json(data))
    if form == BINARY:
        return _checked(_decode_binary(data))
    raise FrameError(f"serialisation {form} is unknown: 0 is JSON, 1 is RocketMQ's own")


def encode_header(form: int, header: Header) -> bytes:
    return encode_json(header) if form == JSON else _encode_binary(header)


def encode_json(header: Header) -> bytes:
    """All members that readers need: Go's has no default for the language."""
    return _ENCODER.encode(
        {
            "code": header.code,
            **({"extFields": header.fields} if header.fields else {}),
            "flag": header.flag,
            "language": header.language,
            "opaque": header.opaque,
            **({"remark": header.remark} if header.remark else {}),
            "version": header.version,
        }
    )


def _decode_json(data: memoryview) -> Header:
    try:
        return _STRICT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # a null member, or a field that is not a text
    try:
        found = _LENIENT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the header is not a JSON header: {error}") from None
    return Header(
        found.code,
        found.opaque,
        found.flag,
        found.language or OTHER,
        found.version,
        found.remark or "",
        {name: _text(value) for name, value in (found.fields or {}).items() if value is not None},
    )


def _text(value: str | float | bool) -> str:
    """As Java's JSON reader gives it to a program that asks for text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _checked(header: Header) -> Header:
    if len(header.fields) > FIELDS_MAX:
        raise FrameError(f"the header has {len(header.fields)} fields, the limit is {FIELDS_MAX}")
    for name, value in (("code", header.code), ("opaque", header.opaque), ("flag", header.flag)):
        if not INT32_MIN <= value <= INT32_MAX:
            raise FrameError(f"{name} {value} has more than 32 bits")
    return header


def _decode_binary(data: memoryview) -> Header:
    if len(data) < _HEAD.size + 2 * _I32.size:
        raise FrameError(f"a binary header has at least 21 bytes, not {len(data)}")
    code, language, version, opaque, flag = _HEAD.unpack_from(data)
    remark, at = _sized(data, _HEAD.size, _I32)
    block, end = _sized(data, at, _I32)
    if end != len(data):
        raise FrameError(f"the binary header ends at byte {end} of {len(data)}")
    fields: dict[str, str] = {}
    at, count = 0, 0
    while at < len(block):
        name, at = _sized(block, at, _I16)
        value, at = _sized(block, at, _I32)
        fields[_utf8(name)] = _utf8(value)
        if (count := count + 1) > FIELDS_MAX:
            raise FrameError(f"the header has more than {FIELDS_MAX} fields")
    name_of_language = LANGUAGES[language] if language < len(LANGUAGES) else OTHER
    return Header(code, opaque, flag, name_of_language, version, _utf8(remark), fields)


def _sized(data: memoryview, at: int, length: Struct) -> tuple[memoryview, int]:
    """A length and as many bytes; and where they end."""
    begin = at + length.size
    if begin > len(data):
        raise FrameError("a field of the binary header crosses its end")
    (size,) = length.unpack_from(data, at)
    if size < 0 or begin + size > len(data):
        raise FrameError(f"a field of {size} bytes crosses the end of the binary header")
    return data[begin : begin + size], begin + size


def _utf8(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FrameError(f"a text of the binary header is not UTF-8: {error}") from None


def _encode_binary(header: Header) -> bytes:
    remark, fields = header.remark.encode(), _fields(header.fields)
    language = LANGUAGES.index(header.language if header.language in LANGUAGES else OTHER)
    code = (header.code + (1 << 15)) % (1 << 16) - (1 << 15)  # 16 bits: higher codes arrive cut
    head = _HEAD.pack(code, language, header.version, header.opaque, header.flag)
    return b"".join((head, _I32.pack(len(remark)), remark, _I32.pack(len(fields)), fields))


def _fields(fields: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        parts += (_I16.pack(len(name_bytes)), name_bytes, _I32.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)
