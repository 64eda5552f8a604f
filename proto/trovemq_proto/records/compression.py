"""Compressed bodies: inflated with a bound. zlib comes with Python; LZ4 and ZSTD need optional packages."""

from __future__ import annotations

import importlib
import io
import zlib
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.records.layout import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
)

STREAM_HEAD_SIZE: Final = 4
"""How many bytes begins_stream() needs."""
_LZ4_FRAME: Final = bytes.fromhex("04224d18")
_ZSTD_FRAME: Final = bytes.fromhex("28b52ffd")
_ZLIB_DEFLATE: Final = 8
_ZLIB_CHECK: Final = 31


def begins_stream(head: bytes, sys_flag: int) -> bool:
    """Whether a body with these first bytes can be of the compression that sys_flag states."""
    method = sys_flag & SYS_FLAG_COMPRESSION_MASK
    if method in (0, COMPRESSION_ZLIB):
        return len(head) > 1 and head[0] & 0xF == _ZLIB_DEFLATE and not int.from_bytes(head[:2]) % _ZLIB_CHECK
    return head == {COMPRESSION_LZ4: _LZ4_FRAME, COMPRESSION_ZSTD: _ZSTD_FRAME}.get(method)


def inflate_body(stored: bytes, sys_flag: int, body_size_max: int) -> bytes:
    """The body as the application gave it; `stored` itself when sys_flag says it is not compressed.

    Raises TroveError RECORD_DAMAGED (no such stream, or more than body_size_max bytes) and
    COMPRESSION_UNSUPPORTED (the package for it is not installed, or the method is unknown).
    """
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return stored
    method = sys_flag & SYS_FLAG_COMPRESSION_MASK
    if method in (0, COMPRESSION_ZLIB):
        body = _inflate_zlib(stored, body_size_max)
    elif method == COMPRESSION_LZ4:
        body = _inflate_lz4(stored, body_size_max)
    elif method == COMPRESSION_ZSTD:
        body = _inflate_zstd(stored, body_size_max)
    else:
        raise TroveError(
            errors.COMPRESSION_UNSUPPORTED, f"compression type {method:#x} is unknown", sys_flag=sys_flag
        )
    if len(body) > body_size_max:
        raise DamagedError(errors.RECORD_DAMAGED, f"the body inflates to more than {body_size_max} bytes")
    return body


def _inflate_zlib(stored: bytes, body_size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored, body_size_max + 1)
    except zlib.error as error:
        raise DamagedError(errors.RECORD_DAMAGED, f"the compressed body does not inflate: {error}") from error
    if not inflater.eof and len(body) <= body_size_max:
        raise DamagedError(errors.RECORD_DAMAGED, "the compressed body is cut short")
    return body


def _inflate_lz4(stored: bytes, body_size_max: int) -> bytes:
    frame = _optional("lz4.frame", "lz4")
    inflater = frame.LZ4FrameDecompressor()
    try:
        body: bytes = inflater.decompress(stored, max_length=body_size_max + 1)
    except (RuntimeError, EOFError) as error:
        raise DamagedError(errors.RECORD_DAMAGED, f"the LZ4 body does not inflate: {error}") from error
    if not inflater.eof and len(body) <= body_size_max:
        raise DamagedError(errors.RECORD_DAMAGED, "the LZ4 body is cut short")
    return body


def _inflate_zstd(stored: bytes, body_size_max: int) -> bytes:
    zstandard = _optional("zstandard", "zstandard")
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored)) as reader:
            body: bytes = reader.read(body_size_max + 1)
    except zstandard.ZstdError as error:
        raise DamagedError(errors.RECORD_DAMAGED, f"the ZSTD body does not inflate: {error}") from error
    return body


def _optional(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TroveError(
            errors.COMPRESSION_UNSUPPORTED,
            f"the body needs the Python package {package}, which is not installed",
        ) from error
