"""The codec's names: imported when they are first used, and one record is read without NumPy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given

from tests.unit.records import reference
from tests.unit.records.strategies import placed, runs
from trovemq_proto import records
from trovemq_proto.errors import TroveError
from trovemq_proto.records.fields import split_records


def test_every_name_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(str(records.__file__)).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: str(node.module) for node in imports for alias in node.names}
    assert sorted(seen) == sorted(records.__all__)
    for name, module in seen.items():
        assert getattr(records, name) is getattr(__import__(module, fromlist=[name]), name), name
    assert set(records.__all__) <= set(dir(records))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = records.no_such_name  # type: ignore[attr-defined]


def test_one_record_is_read_without_numpy() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from trovemq_proto.records import decode_received, encode_record\n"
        "from trovemq_proto.records.fields import split_records\n"
        "record = encode_record('orders', b'body', properties={'KEYS': 'k'})\n"
        "(found,) = map(decode_received, split_records(record))\n"
        "assert (found.body, found.keys, found.to_manifest()['topic']) == (b'body', ('k',), 'orders')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )
    assert ran.returncode == 0, ran.stderr


@given(runs())
def test_records_one_by_one_are_those_of_the_batch(run: list[reference.Record]) -> None:
    data, _ = placed(run, 0)
    batch = records.RecordBatch.split(data)
    assert list(split_records(data)) == [bytes(batch.record(i)) for i in range(len(batch))]


def test_bytes_behind_the_last_record_are_illegal() -> None:
    data = records.encode_record("orders", b"body")
    for wrong in (data + b"x", data[:-1], data + bytes(200)):
        with pytest.raises(TroveError, match="no well-formed record"):
            list(split_records(wrong))
