"""Texts of one Java hash, as an attacker makes them: "Aa" and "BB" have one, and so has all that is made of
them."""

from __future__ import annotations

from itertools import islice, product


def texts_of_one_hash(count: int) -> list[str]:
    """This many keys of one hash, all of one length."""
    pairs = max(1, (count - 1).bit_length())
    return ["".join(parts) for parts in islice(product(("Aa", "BB"), repeat=pairs), count)]
