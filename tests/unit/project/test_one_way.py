"""One way for a message: only the records and the wire have a form for few messages beside one for many."""

from __future__ import annotations

import re
from typing import Final

from tests.unit.project.test_tidy import CODE, ROOT, modules, relative, within

PACKAGES: Final = (*CODE, "pipeline/trovemq_spark")
NAMES: Final = re.compile(r"^ *(?:async )?def (\w+_(?:few|many|usual|plain|one))\(", re.MULTILINE)
RECORDS: Final = "proto/trovemq_proto/records"
FORMS: Final = (RECORDS, "broker/trovemq_broker/server/wire")
"""The packages that may choose a form by the number of messages."""
COUNTS: Final = re.compile(
    r"\b(?:ROWS_MAX|has_few_records|PLAIN_ENCODED_MAX|UNIFORM_MIN|_ALIKE_MIN|ODD_SHARE|PIECES_KEPT_MAX)\b"
)
"""Names of the records that ask how many records a batch has."""
ASKING: Final = {
    "broker/trovemq_broker/fetch/pull.py": {"ROWS_MAX"},
    "broker/trovemq_broker/groups/delivery/priority_order.py": {"ROWS_MAX"},
    "broker/trovemq_broker/groups/delivery/records.py": {"ROWS_MAX"},
    "broker/trovemq_broker/server/monitoring/traffic.py": {"ROWS_MAX"},
    "clients/python/trovemq/_consume/record_spans.py": {"has_few_records"},
    "clients/python/trovemq/_produce/unique_keys.py": {"PLAIN_ENCODED_MAX"},
    "clients/python/trovemq/fetched.py": {"has_few_records"},
    "proto/trovemq_proto/numpy_extra.py": {"PLAIN_ENCODED_MAX"},  # which defines it
}
DECISIONS: Final = "docs/internals/decisions.md"


def functions() -> set[str]:
    """`path::name` of each function outside `FORMS` whose name says how many messages it takes."""
    return {
        f"{relative(path)}::{name}"
        for path in modules(PACKAGES)
        if not within(path, FORMS)
        for name in NAMES.findall(path.read_text(encoding="utf-8"))
    }


def test_no_function_takes_few_or_many_messages_apart() -> None:
    assert functions() == set()


def test_only_named_modules_ask_how_many_records_a_batch_has() -> None:
    found = {
        relative(path): set(COUNTS.findall(path.read_text(encoding="utf-8")))
        for path in modules(PACKAGES)
        if not within(path, (RECORDS,))
    }
    assert {path: names for path, names in found.items() if names} == ASKING


def test_each_module_that_asks_is_named_with_its_figure() -> None:
    rows = re.findall(r"^\| `(\S+\.py)` \| `(\w+)` \| .*\S \|$", (ROOT / DECISIONS).read_text(), re.MULTILINE)
    asking = [(path, name) for path, names in ASKING.items() for name in names if "numpy_extra" not in path]
    assert sorted(rows) == sorted(asking)
