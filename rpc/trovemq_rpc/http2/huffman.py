"""Huffman decoding (RFC 7541, section 5.2), one step a byte.

A state is an inner node of the code's tree: the bits of the current symbol so far. There are 256. A step
maps a state and a byte to the next state and the symbols that end within this byte. Steps are computed
when they are first used, at most 256 x 256 of them; text uses a few hundred.

Encoding is not here: a sender may always write its strings plainly, and ours does.
"""

from typing import Final, NamedTuple

from trovemq_rpc.http2.hpack_tables import END_OF_STRING, HUFFMAN_CODES

__all__ = ["HuffmanError", "huffman_decode"]


class HuffmanError(Exception):
    """The bits are not a Huffman string."""


class _Step(NamedTuple):
    state: "_State"
    symbols: bytes


class _State(dict[int, _Step]):
    """An inner node, and the known steps from it, by byte."""

    def __init__(self, may_end: bool) -> None:
        self.branches: list[_State | int | None] = [None, None]
        self.may_end = may_end

    def __missing__(self, byte: int) -> _Step:
        state, symbols = self, bytearray()
        for shift in range(7, -1, -1):
            branch = state.branches[byte >> shift & 1]
            if isinstance(branch, _State):
                state = branch
                continue
            assert branch is not None  # the code is complete
            if branch == END_OF_STRING:
                raise HuffmanError("the end-of-string symbol is inside a string")
            symbols.append(branch)
            state = _ROOT
        step = self[byte] = _Step(state, bytes(symbols))
        return step


def _tree() -> _State:
    """Build the tree. A string may end at the root and after one to seven set bits (padding)."""
    root = _State(may_end=True)
    for symbol, (code, length) in enumerate(HUFFMAN_CODES):
        state = root
        for depth in range(1, length):
            bit = code >> (length - depth) & 1
            branch = state.branches[bit]
            if branch is None:
                branch = state.branches[bit] = _State(may_end=state.may_end and bit == 1 and depth <= 7)
            assert isinstance(branch, _State)  # no code is the beginning of another
            state = branch
        state.branches[code & 1] = symbol
    return root


_ROOT: Final = _tree()
_START: Final = _Step(_ROOT, b"")


def huffman_decode(data: bytes) -> bytes:
    """Decode one string. Raises HuffmanError for bad padding and for the end-of-string symbol."""
    step = _START
    text = b"".join([(step := step[0][byte])[1] for byte in data])
    if not step[0].may_end:
        raise HuffmanError("the padding of a Huffman string is not the beginning of the end-of-string symbol")
    return text
