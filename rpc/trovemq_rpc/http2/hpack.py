"""Header compression: HPACK (RFC 7541), the decoder. `hpack_encoder` has the encoder.

    first byte   representation                     then                                       section
    1iiiiiii     indexed field                      -                                          6.1
    01iiiiii     literal, inserted in the table     name (where i is 0), value                 6.2.1
    001sssss     dynamic table size update          - (only before the first field)            6.3
    0001iiii     literal, never indexed             name (where i is 0), value                 6.2.3
    0000iiii     literal, not indexed               name (where i is 0), value                 6.2.2

    integer      i or s; where all its bits are set, more bytes of seven bits, lowest first    5.1
    string       hlllllll, length as an integer; then the bytes, Huffman-coded where h is 1    5.2

Index 1 to 61 is the static table; 62 is the newest entry of the dynamic table.

Invariants of the decoder:
- The dynamic table equals that of the peer's encoder: a block is read to its end even if its fields are too
  large for us. After HpackError it may differ, and the connection must end (COMPRESSION_ERROR).
- The entries' sizes (name + value + 32) add up to at most the size that the peer chose, which is at most
  ours.
- A cached block means the same now as when it was read: neither it nor a block after it inserted an entry
  or updated the size. A block that does empties the cache.
"""

from typing import Final

from trovemq_rpc.http2.hpack_tables import STATIC_TABLE
from trovemq_rpc.http2.huffman import HuffmanError, huffman_decode

__all__ = ["Decoder", "Header", "HeaderBomb", "HeaderListTooLarge", "HpackError"]

Header = tuple[bytes, bytes]

ENTRY_OVERHEAD: Final = 32  # section 4.1
TABLE_SIZE_DEFAULT: Final = 4096  # RFC 9113, section 6.5.2: SETTINGS_HEADER_TABLE_SIZE
HEADER_LIST_SIZE_DEFAULT: Final = 16 * 1024  # grpc-core's hard limit of metadata

# A larger integer means nothing here: lengths end with the block, indices with the tables.
INTEGER_MAX: Final = 2**28

SIZE_UPDATES_MAX: Final = 16  # in a block: an encoder needs two (section 4.2); each costs as much as a field
LIST_SIZE_BOMB: Final = 256 * 1024
"""A larger header list is not read to its end: a byte of a block may be a field, so a block of 64 KiB could
take 13 ms. An honest list does not get there: four times our default limit.
"""
BYTES_OF_WORK: Final = 32
"""Of a block: to read them costs about as much as two fields, if they are Huffman's. No benchmark has a
case for it."""

# The blocks that a decoder caches: repeated calls send the same one, and large ones are rarely repeated.
# Each connection has a decoder, so all its blocks together are bounded.
CACHED_BLOCK_SIZE_MAX: Final = 512
CACHED_SIZE_MAX: Final = 8 * 1024  # about as much as the dynamic table may hold

_STATIC_COUNT: Final = len(STATIC_TABLE) - 1
_STATIC_SIZES: Final = tuple(len(name) + len(value) + ENTRY_OVERHEAD for name, value in STATIC_TABLE)


class HpackError(Exception):
    """The block cannot be decoded, nor any block after it: a connection error COMPRESSION_ERROR."""


class HeaderBomb(Exception):  # noqa: N818 - the name states the reason
    """The block has too many fields to be read to its end: the connection ends."""


class HeaderListTooLarge(Exception):  # noqa: N818 - the name states the reason, as HTTP's status 431 does
    """The fields are larger than we accept. The decoder is ready for the next block."""

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(f"a header list of {size} bytes; at most {size_max} are accepted")
        self.size = size
        self.size_max = size_max


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Read an integer's further bytes: its first one at `at` - 1 had all the bits of `prefix`."""
    value, shift = prefix, 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > INTEGER_MAX or shift > 28:
            raise HpackError("an integer is too large")
        if byte < 0x80:
            return value, at
        shift += 7


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    at += 1
    length = first & 0x7F
    if length == 0x7F:
        length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HpackError("a string is longer than its block")
    text = block[at:end]
    return (huffman_decode(text) if first & 0x80 else text), end


class Decoder:
    """Reads the header blocks of one direction of a connection, in their order."""

    __slots__ = (
        "_cached",
        "_cached_size",
        "_changed",
        "_entries",
        "_list_size",
        "_list_size_max",
        "_size",
        "_size_limit",
        "_size_max",
        "_sizes",
        "shared",
        "work",
    )

    def __init__(
        self,
        max_table_size: int = TABLE_SIZE_DEFAULT,
        max_header_list_size: int = HEADER_LIST_SIZE_DEFAULT,
    ) -> None:
        self._entries: list[Header] = []  # oldest first, so that index 62 is the last
        self._sizes: list[int] = []  # of the entries
        self._size = 0
        self._size_max = max_table_size  # chosen by the peer
        self._size_limit = max_table_size  # set by us
        self._list_size_max = max_header_list_size
        self._list_size = 0
        self._changed = False
        self._cached: dict[bytes, list[Header]] = {}
        self._cached_size = 0
        self.shared = False  # whether equal blocks get the last list, too
        self.work = 0  # that the last block was, as `Receiving.parse` counts it; none if it was cached

    @property
    def list_size(self) -> int:
        """Bytes of the last header list that was not cached, as RFC 9113 section 6.5.2 counts them."""
        return self._list_size

    @property
    def table_size(self) -> int:
        """Bytes in the dynamic table, counted as section 4.1 does."""
        return self._size

    def decode(self, block: bytes | memoryview) -> list[Header]:
        """Decode a whole block. The list is shared with later equal blocks: do not change it."""
        block = bytes(block)
        known = self._cached.get(block)
        if known is not None:
            self.shared = True
            self.work = 0
            return known
        self._changed = self.shared = False
        self._list_size = 0
        try:
            at = self._size_updates(block) if block and block[0] & 0xE0 == 0x20 else 0
            fields = self._fields(block, at)
        except IndexError:
            raise HpackError("a block ends within a field, or names an entry that is not there") from None
        except HuffmanError as e:
            raise HpackError(str(e)) from None
        if self._changed:
            self._cached.clear()
            self._cached_size = 0
        if self._list_size > self._list_size_max:
            self.work = len(block) // 2
            raise HeaderListTooLarge(self._list_size, self._list_size_max)
        self.work = len(fields) // 2 + len(block) // BYTES_OF_WORK
        if not self._changed:
            self._cache(block, fields)
        return fields

    def _cache(self, block: bytes, fields: list[Header]) -> None:
        if len(block) > CACHED_BLOCK_SIZE_MAX:
            return
        if self._cached_size + len(block) > CACHED_SIZE_MAX:
            self._cached.clear()
            self._cached_size = 0
        self._cached[block] = fields
        self.shared = True
        self._cached_size += len(block)

    def _size_updates(self, block: bytes) -> int:
        """Apply the updates that open the block; return where its fields begin."""
        at = updates = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:
            updates += 1
            if updates > SIZE_UPDATES_MAX:
                raise HpackError("a block has too many dynamic table size updates")
            size = block[at] & 0x1F
            at += 1
            if size == 0x1F:
                size, at = _integer(block, at, 0x1F)
            if size > self._size_limit:
                raise HpackError(f"a dynamic table of {size} bytes is above the limit of {self._size_limit}")
            self._size_max = size
            self._changed = True
            self._evict(0)
        return at

    def _fields(self, block: bytes, at: int) -> list[Header]:
        fields: list[Header] = []
        end, size, size_max = len(block), 0, self._list_size_max
        entries, sizes = self._entries, self._sizes
        while at < end:
            first = block[at]
            at += 1
            if first >= 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                if index > _STATIC_COUNT:
                    index = _STATIC_COUNT - index
                    field = entries[index]
                    size += sizes[index]
                elif index:
                    field = STATIC_TABLE[index]
                    size += _STATIC_SIZES[index]
                else:
                    raise HpackError("index 0 is not used")
            else:
                field, field_size, at = self._literal(block, at, first)
                size += field_size
            if size <= size_max:
                fields.append(field)
            elif size > max(size_max * 4, LIST_SIZE_BOMB):
                raise HeaderBomb
        self._list_size = size
        return fields

    def _literal(self, block: bytes, at: int, first: int) -> tuple[Header, int, int]:
        """A field, its size, and where the next one begins."""
        if first & 0xE0 == 0x20:
            raise HpackError("a dynamic table size update comes after a field")
        mask = 0x3F if first & 0x40 else 0x0F
        index = first & mask
        if index == mask:
            index, at = _integer(block, at, mask)
        if not index:
            name, at = _string(block, at)
        elif index > _STATIC_COUNT:
            name = self._entries[_STATIC_COUNT - index][0]
        else:
            name = STATIC_TABLE[index][0]
        length = block[at]
        if length < 0x7F:  # as _string does for a short one that is plain
            start = at + 1
            at = start + length
            if at > len(block):
                raise HpackError("a string is longer than its block")
            value = block[start:at]
        else:
            value, at = _string(block, at)
        field = (name, value)
        size = len(name) + len(value) + ENTRY_OVERHEAD
        if first & 0x40:
            self._changed = True
            if self._size + size > self._size_max:
                self._evict(size)
            if size <= self._size_max:  # section 4.4: a larger one is no error, it empties the table
                self._entries.append(field)
                self._sizes.append(size)
                self._size += size
        return field, size, at

    def _evict(self, needed: int) -> None:
        """Drop the oldest entries until `needed` bytes fit, or the table is empty."""
        count, sizes, size = 0, self._sizes, self._size
        limit = self._size_max - needed
        while size > limit and count < len(sizes):
            size -= sizes[count]
            count += 1
        del self._entries[:count]
        del sizes[:count]
        self._size = size
        assert size >= 0
        assert sizes or not size
