"""The id of a message has one name where users see it: message_id, --message-id, messageId. Its page names
RocketMQ's words once; the store's format, the wire and the engine keep them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import trovemq
from trovemq.cli.app import FORMER_NAMES

ROOT = Path(__file__).resolve().parents[3]
SEEN: Final = (
    "README.md",
    "docs/*.md",
    "docs/api/*.md",
    "docs/how-to/*.md",
    "clients/python/trovemq/*.py",
    "clients/python/trovemq/cli/**/*.py",
    "clients/python/trovemq/models/*.py",
    "clients/python/trovemq/sync/*.py",
    "clients/python/trovemq/_lookup/*.py",
    "console/trovemq_console/**/*.py",
    "console/trovemq_console/**/*.html",
    "deploy/demo/*.py",
    "pipeline/trovemq_spark/jobs/*.py",
    "pipeline/trovemq_spark/sinks/*.py",
    "pipeline/trovemq_spark/table/*.py",
)
ROCKETMQS: Final = {"docs/rocketmq-protocol.md", "docs/store-format.md", "docs/remoting.md"}
"""Pages of RocketMQ's formats, in its words."""
FORMER: Final = re.compile(r"(?i:\bunique[_ -]?keys?\b|\bunique[_ ]ids?\b|\bmsg_?id\b)|uniqKey|ByUniqueKey")
KEPT: Final = {
    (
        "clients/python/trovemq/receipts.py",
        "def unique_key(self)",
    ),  # the former name, until the first release
    (
        "clients/python/trovemq/cli/cut_messages.py",
        "if message.unique_key else",
    ),  # whether the record has one
    ("deploy/demo/load.py", "last.unique_key"),
    ("docs/how-to/move-from-rocketmq.md", "queryMsgByUniqueKey"),
    ("docs/how-to/search-and-track.md", "its tools call it `msgId`"),
}


def found() -> Iterator[tuple[str, str]]:
    for pattern in SEEN:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name in ROCKETMQS:
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                if FORMER.search(line):
                    yield name, line.strip()


def test_no_former_name_where_users_see_it() -> None:
    kept = {(name, part) for name, line in found() for other, part in KEPT if name == other and part in line}
    wrong = [(name, line) for name, line in found() if not any(n == name and p in line for n, p in KEPT)]
    assert wrong == []
    assert kept == KEPT, "an exception without its line"


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        (trovemq.Client.send, "message_id"),
        (trovemq.Producer.send, "message_id"),
        (trovemq.Producer.send_batch, "message_ids"),
        (trovemq.Client.search, "message_id"),
    ],
)
def test_the_sdk_calls_it_message_id(call: Any, parameter: str) -> None:
    assert parameter in inspect.signature(call).parameters


def test_a_receipt_still_has_the_former_name() -> None:
    receipt = trovemq.SendReceipt("t", 0, 0, 0, "", "order-42", "disk", 0, "a", "PUT_OK")
    assert receipt.message_id == receipt.unique_key == "order-42"


@pytest.mark.parametrize("former", ["id", "unique"])
def test_the_command_line_still_takes_the_former_name(former: str) -> None:
    assert FORMER_NAMES[former] == "message-id"
