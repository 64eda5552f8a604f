"""The rows of the table of errors: errors.py and cluster_errors.py fill it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trovemq_proto.trove_error import ErrorSpec


@dataclass(slots=True)
class ErrorTable:
    """The rows by symbol and by code."""

    by_symbol: dict[str, ErrorSpec] = field(default_factory=dict)
    by_code: dict[int, ErrorSpec] = field(default_factory=dict)

    def add(
        self, symbol: str, code: int, grpc_status: str, retriable: bool, meaning: str, what_to_do: str
    ) -> ErrorSpec:
        spec = ErrorSpec(symbol, code, grpc_status, retriable, meaning, what_to_do)
        assert symbol not in self.by_symbol, symbol
        assert code not in self.by_code, code
        self.by_symbol[symbol] = spec
        self.by_code[code] = spec
        return spec


TABLE: Final = ErrorTable()
