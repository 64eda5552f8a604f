"""verify: every planted fault is found and named, and nothing else is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.verify_client import ScriptedProducer, messages_of_pages
from tests.unit.cli.conftest import STORE_HOST, CommandLine, FakeClient, Found, Ran
from trovemq._verify.content import RunContent
from trovemq._verify.evidence import Evidence
from trovemq._verify.findings import EXAMPLES_MAX, KINDS
from trovemq._verify.ledger import ACKNOWLEDGED, REFUSED, UNKNOWN, LedgerEntry, LedgerWriter, RunHeader
from trovemq.models.cluster import QueueOffsets
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, decode_message, encode_record

CONTENT = RunContent(seed=7, size=40, key_count=4)
COUNT = 24
PLACE = ("broker-a", 0)


@dataclass
class VerifyClient(FakeClient):
    """Its look-ups can be made to miss, each separately."""

    hidden: dict[str, set[str]] = field(default_factory=dict)  # way of looking -> unique keys
    wrong: dict[str, bytes] = field(default_factory=dict)  # offsetMsgId or key -> the record of its answer
    first_offset: int = 0
    producers: list[ScriptedProducer] = field(default_factory=list)

    def producer(self, topic: str, **_: object) -> ScriptedProducer:
        self.producers.append(ScriptedProducer(self.send, topic))
        return self.producers[-1]

    def _is_hidden(self, way: str, message: Message) -> bool:
        return message.message_id in self.hidden.get(way, ())

    async def get(self, identifier: str, *, topic: str | None = None, broker: str | None = None) -> Found:
        if identifier in self.wrong:
            return Found("offset_msg_id", (decode_message(self.wrong[identifier]),))
        found = await super().get(identifier, topic=topic, broker=broker)
        left = tuple(m for m in found.messages if not self._is_hidden(found.kind, m))
        if not left:
            raise TroveError(errors.MESSAGE_NOT_FOUND, identifier)
        if any(self._is_hidden("damaged", message) for message in left):
            raise TroveError(errors.RECORD_DAMAGED, identifier)
        return Found(found.kind, left)

    async def query_all(
        self, topic: str, key: str, *, page_size: int, broker: str, begin: int, end: int
    ) -> AsyncIterator[Message]:
        pages = messages_of_pages(
            self.query, topic, key, type="key", max=page_size, begin=begin, end=end, broker=broker
        )
        async for message in pages:
            wrong = decode_message(self.wrong[key]) if key in self.wrong else None
            if wrong is not None and wrong.queue_offset == message.queue_offset:
                yield wrong
            elif not self._is_hidden("key", message):
                yield message

    async def queue_offsets(self, topic: str, **options: Any) -> list[QueueOffsets]:
        return [
            replace(queue, min_offset=self.first_offset)
            for queue in await super().queue_offsets(topic, **options)
        ]


@pytest.fixture
def client() -> VerifyClient:
    return VerifyClient(topics={"orders": 2})


@dataclass
class Run:
    """A run on queue 0 of `orders`: the store's messages and the ledger's."""

    client: VerifyClient
    path: Path
    entries: list[LedgerEntry]
    begin: int = 0

    @property
    def queue(self) -> list[bytes]:
        return self.client.records["orders", 0]

    def write(self, *, ended: bool = True) -> None:
        self.path.unlink(missing_ok=True)
        header = RunHeader("orders", CONTENT, 1, {PLACE: self.begin, ("broker-a", 1): 0}, 1)
        with LedgerWriter(self.path, header) as writer:
            writer.add(self.entries)
            if ended:
                writer.end({})

    def names(self, *numbers: int) -> list[str]:
        return [CONTENT.message_id(0, number) for number in numbers]

    def append(self, record: bytes) -> None:
        """One more record at the end of the queue."""
        self.queue.append(changed(record, queue_offset=len(self.queue), physical_offset=1 << 30))


def changed(record: bytes, **changes: Any) -> bytes:
    """A record with other fields and right CRCs."""
    message = decode_message(record)
    properties = {**message.properties, **changes.pop("properties", {})}
    fields: dict[str, Any] = {
        "body": message.body,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
    }
    fields.update(changes)
    return encode_record(
        message.topic,
        fields.pop("body"),
        queue_id=message.queue_id,
        properties=properties,
        store_timestamp=message.store_timestamp,
        store_host=STORE_HOST,
        **fields,
    )


def entry_of(number: int, outcome: str, sequence: int, message: Message | None = None) -> LedgerEntry:
    body_hash = sha256(CONTENT.body(0, number)).digest()
    shared = (outcome, CONTENT.message_id(0, number), CONTENT.key(number), body_hash, *PLACE, 0, sequence, 1)
    if message is None:
        return LedgerEntry(*shared, error="BROKER_UNREACHABLE")
    return LedgerEntry(*shared, message.queue_offset, message.offset_msg_id, "disk", message.store_timestamp)


def stored(client: FakeClient, number: int) -> Message:
    """Message `number` of the run, sent and read again."""
    sending = client.send(
        "orders",
        CONTENT.body(0, number),
        keys=[CONTENT.key(number)],
        message_id=CONTENT.message_id(0, number),
        queue_id=0,
    )
    receipt = asyncio.run(sending)
    return decode_message(client.records["orders", 0][receipt.queue_offset])


@pytest.fixture
def planted(client: VerifyClient, tmp_path: Path) -> Run:
    """COUNT acknowledged messages, all there."""
    entries = [entry_of(i, ACKNOWLEDGED, i, stored(client, i)) for i in range(COUNT)]
    return Run(client, tmp_path / "ledger", entries)


def check(run: CommandLine, planted: Run, *arguments: str, ended: bool = True) -> dict[str, Any]:
    """The report; its exit code must agree with it."""
    planted.write(ended=ended)
    ran: Ran = run("--json", "verify", "check", "--ledger", str(planted.path), *arguments)
    assert ran.err == ""
    (report,) = ran.objects
    assert ran.code == (1 if report["wrong"] else 0)
    assert report["wrong"] == any(report[kind] for kind in KINDS)
    assert isinstance(report, dict)
    return report


def found(report: dict[str, Any]) -> dict[str, list[str]]:
    """Unique keys of the faults by kind; the counts must agree."""
    by_kind: dict[str, list[str]] = {}
    for fault in report["faults"]:
        by_kind.setdefault(fault["kind"], []).append(fault["messageId"])
    assert {kind: len(names) for kind, names in by_kind.items()} == {k: report[k] for k in KINDS if report[k]}
    return {kind: sorted(names) for kind, names in by_kind.items()}


# --- nothing wrong --------------------------------------------------------------------------------------


def test_a_whole_run_has_no_fault(run: CommandLine, planted: Run) -> None:
    report = check(run, planted)
    assert found(report) == {}
    assert (report["acknowledged"], report["read"]) == (COUNT, COUNT)
    assert (report["lookedUp"], report["askedByKey"]) == (COUNT, CONTENT.key_count)


def test_other_peoples_messages_and_those_from_before_are_not_looked_at(
    run: CommandLine, planted: Run
) -> None:
    asyncio.run(planted.client.send("orders", b"foreign", keys=[CONTENT.key(0)], queue_id=0))
    asyncio.run(planted.client.send("orders", b"foreign", queue_id=1))
    assert found(check(run, planted)) == {}


def test_a_sample_is_looked_up_and_everything_is_read(run: CommandLine, planted: Run) -> None:
    report = check(run, planted, "--sample", "5")
    assert (report["read"], report["lookedUp"]) == (COUNT, 5)
    assert 1 <= report["askedByKey"] <= 5
    report = check(run, planted, "--sample", "0")
    assert (report["read"], report["lookedUp"], report["askedByKey"]) == (COUNT, 0, 0)
    assert check(run, planted, "--sample", "1000")["lookedUp"] == COUNT


def test_unknown_sends_may_be_stored_or_not(run: CommandLine, planted: Run) -> None:
    stored(planted.client, 100)
    planted.entries += [entry_of(100, UNKNOWN, 30), entry_of(101, UNKNOWN, 31), entry_of(102, REFUSED, 32)]
    stored(planted.client, 103)  # unknown, and stored; then again, and acknowledged
    planted.entries += [entry_of(103, UNKNOWN, 33)]
    planted.entries += [entry_of(103, ACKNOWLEDGED, 34, stored(planted.client, 103))]
    report = check(run, planted)
    assert found(report) == {}
    assert (report["unknown"], report["refused"], report["unknownStored"]) == (3, 1, 2)


# --- each kind of fault ---------------------------------------------------------------------------------


def test_the_end_of_a_queue_that_is_gone_is_lost(run: CommandLine, planted: Run) -> None:
    del planted.queue[-2:]
    report = check(run, planted)
    assert found(report) == {"lost": planted.names(22, 23)}
    assert report["faults"][0]["queueOffset"] == 22
    assert report["faults"][0]["durability"] == "disk"


def test_a_message_under_anothers_record_is_lost(run: CommandLine, planted: Run) -> None:
    planted.queue[5] = changed(planted.queue[5], body=b"other", properties={"UNIQ_KEY": "FOREIGN"})
    assert found(check(run, planted)) == {"lost": planted.names(5)}


def test_a_whole_queue_that_is_gone_is_lost(run: CommandLine, planted: Run) -> None:
    planted.queue.clear()
    report = check(run, planted)
    assert report["lost"] == COUNT
    assert len(report["faults"]) == EXAMPLES_MAX


def test_below_the_first_offset_is_lost_unless_it_may_have_expired(run: CommandLine, planted: Run) -> None:
    planted.client.first_offset = 3
    assert found(check(run, planted)) == {"lost": planted.names(0, 1, 2)}
    report = check(run, planted, "--expired-ok")
    assert (found(report), report["expired"]) == ({}, 3)


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"body": b"other"}, ["bodySha256"]),
        ({"properties": {"KEYS": "other"}}, ["keys"]),
        ({"properties": {"UNIQ_KEY": "other"}}, ["messageId"]),
        ({"physical_offset": 999_999}, ["offsetMsgId"]),
        ({"body": b"other", "properties": {"KEYS": "k"}}, ["keys", "bodySha256"]),
    ],
)
def test_an_altered_message_is_found(
    changes: dict[str, Any], differing: list[str], run: CommandLine, planted: Run
) -> None:
    planted.queue[5] = changed(planted.queue[5], **changes)
    report = check(run, planted)
    assert found(report) == {"altered": planted.names(5)}
    assert report["faults"][0]["differing"] == differing


def test_a_flipped_bit_is_found_and_its_neighbours_are_read(run: CommandLine, planted: Run) -> None:
    damaged = bytearray(planted.queue[5])
    damaged[bytes(damaged).index(CONTENT.body(0, 5))] ^= 1  # its CRC is wrong now
    planted.queue[5] = bytes(damaged)
    report = check(run, planted, "--sample", "0")
    assert found(report) == {"altered": planted.names(5)}
    assert report["read"] == COUNT - 1


def test_a_second_copy_is_a_duplicate(run: CommandLine, planted: Run) -> None:
    planted.append(planted.queue[5])
    report = check(run, planted)
    assert found(report) == {"duplicated": planted.names(5)}
    assert report["faults"][0]["queueOffset"] == COUNT


def test_one_copy_more_than_unknown_sends_is_a_duplicate(run: CommandLine, planted: Run) -> None:
    message = stored(planted.client, 100)
    planted.append(message.record)
    planted.entries.append(entry_of(100, UNKNOWN, 30))
    report = check(run, planted)
    assert found(report) == {"duplicated": planted.names(100)}
    assert report["unknownStored"] == 1


def test_a_copy_of_an_unknown_send_does_not_count_as_the_acknowledged_one(
    run: CommandLine, planted: Run
) -> None:
    stored(planted.client, 100)
    planted.entries.append(entry_of(100, UNKNOWN, 30))
    planted.entries.append(entry_of(100, ACKNOWLEDGED, 31, stored(planted.client, 100)))
    del planted.queue[-1]
    assert found(check(run, planted)) == {"lost": planted.names(100)}


def test_an_altered_copy_of_an_unknown_send_is_found(run: CommandLine, planted: Run) -> None:
    stored(planted.client, 100)
    planted.queue[-1] = changed(planted.queue[-1], body=b"other")
    planted.entries.append(entry_of(100, UNKNOWN, 30))
    assert found(check(run, planted)) == {"altered": planted.names(100)}


def test_messages_that_changed_places_are_reordered(run: CommandLine, planted: Run) -> None:
    first, second = planted.queue[5], planted.queue[6]
    planted.queue[5] = changed(second, queue_offset=5)
    planted.queue[6] = changed(first, queue_offset=6)
    assert found(check(run, planted)) == {"reordered": planted.names(5, 6)}


def test_offsets_against_the_order_of_sending_are_reordered(run: CommandLine, planted: Run) -> None:
    planted.entries[5] = replace(planted.entries[5], sequence=6)
    planted.entries[6] = replace(planted.entries[6], sequence=5)
    report = check(run, planted)
    assert found(report) == {"reordered": planted.names(6)}


def test_producers_may_overtake_one_another(run: CommandLine, planted: Run) -> None:
    planted.entries[6] = replace(planted.entries[6], sequence=0, producer=1)
    assert found(check(run, planted)) == {}


def test_a_message_that_nobody_sent_or_that_was_refused_is_a_phantom(run: CommandLine, planted: Run) -> None:
    stored(planted.client, 100)
    stored(planted.client, 101)
    planted.entries.append(entry_of(101, REFUSED, 30))
    report = check(run, planted)
    assert found(report) == {"phantom": planted.names(100, 101)}
    assert {fault["how"] for fault in report["faults"]} == {
        "the ledger has no line of it",
        "its sends were refused",
    }


def test_what_was_under_way_when_the_verifier_was_killed_is_not_a_phantom(
    run: CommandLine, planted: Run
) -> None:
    stored(planted.client, 100)
    report = check(run, planted, ended=False)
    assert (found(report), report["unrecorded"], report["ended"]) == ({}, 1, False)
    planted.append(planted.queue[5])  # acknowledged messages are never sent again
    planted.append(planted.queue[-2])  # nor is anything sent twice without a line
    assert found(check(run, planted, ended=False)) == {"duplicated": sorted(planted.names(5, 100))}


@pytest.mark.parametrize(("way", "by"), [("offset_msg_id", "offsetMsgId"), ("message_id", "messageId")])
def test_a_message_that_one_look_up_misses_is_lost(way: str, by: str, run: CommandLine, planted: Run) -> None:
    planted.client.hidden[way] = set(planted.names(5))
    report = check(run, planted)
    assert found(report) == {"lost": planted.names(5)}
    assert report["faults"][0]["by"] == by


@pytest.mark.parametrize("sample", ["all", str(COUNT - 1)])
def test_a_message_that_its_key_does_not_find_is_lost(sample: str, run: CommandLine, planted: Run) -> None:
    hidden = planted.names(5, 6)
    planted.client.hidden["key"] = set(hidden)
    names = found(check(run, planted, "--sample", sample))["lost"]
    assert names
    assert set(names) <= set(hidden)
    assert sample != "all" or names == hidden


def test_a_record_that_a_look_up_cannot_read_is_altered(run: CommandLine, planted: Run) -> None:
    planted.client.hidden["damaged"] = set(planted.names(5))
    assert found(check(run, planted)) == {"altered": planted.names(5)}


def test_two_acknowledgements_of_one_place_are_a_loss(run: CommandLine, planted: Run) -> None:
    planted.entries.append(
        replace(planted.entries[5], message_id=CONTENT.message_id(0, 99), body_hash=bytes(32), sequence=6)
    )
    planted.entries[6] = replace(planted.entries[6], sequence=7)
    planted.entries[7] = replace(planted.entries[7], sequence=7)
    assert found(check(run, planted)) == {"lost": planted.names(99)}


def test_two_acknowledgements_of_one_copy_are_a_loss(run: CommandLine, planted: Run) -> None:
    planted.entries.append(planted.entries[5])
    assert found(check(run, planted)) == {"lost": planted.names(5)}


def test_an_identifier_that_finds_another_message_is_altered(run: CommandLine, planted: Run) -> None:
    planted.client.wrong[planted.entries[5].offset_msg_id] = planted.queue[6]
    report = check(run, planted)
    assert found(report) == {"altered": planted.names(5)}
    assert "messageId" in report["faults"][0]["differing"]


def test_another_body_in_the_answer_to_a_key_is_altered(run: CommandLine, planted: Run) -> None:
    planted.client.wrong[CONTENT.key(5)] = changed(planted.queue[5], body=b"other")
    report = check(run, planted)
    assert found(report) == {"altered": planted.names(5)}
    assert report["faults"][0]["by"] == "keys"


def test_what_lay_there_before_the_run_is_not_the_runs(run: CommandLine, planted: Run) -> None:
    """An earlier run with the same seed, say."""
    planted.entries = planted.entries[2:]
    assert found(check(run, planted)) == {"phantom": planted.names(0, 1)}
    planted.begin = 2
    report = check(run, planted)
    assert (found(report), report["read"]) == ({}, COUNT - 2)


def test_a_broker_that_is_not_there_is_an_error_and_no_loss(run: CommandLine, planted: Run) -> None:
    planted.entries[0] = replace(planted.entries[0], broker="broker-z")
    planted.write()
    ran = run("--json", "verify", "check", "--ledger", str(planted.path))
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "BROKER_NOT_FOUND")


# --- many faults together -------------------------------------------------------------------------------

Fault = Callable[[list[bytes], int], None]


def lose(queue: list[bytes], number: int) -> None:
    queue[number] = changed(queue[number], body=b"other", properties={"UNIQ_KEY": "FOREIGN"})


def alter(queue: list[bytes], number: int) -> None:
    queue[number] = changed(queue[number], body=b"other")


def duplicate(queue: list[bytes], number: int) -> None:
    queue.append(changed(queue[number], queue_offset=len(queue)))


def make_up(queue: list[bytes], number: int) -> None:
    name, body = CONTENT.message_id(3, number), b"made up"
    queue.append(changed(queue[number], queue_offset=len(queue), body=body, properties={"UNIQ_KEY": name}))


def move(queue: list[bytes], number: int) -> None:
    queue.append(changed(queue[number], queue_offset=len(queue)))
    lose(queue, number)


FAULTS: dict[str, Fault] = {
    "lost": lose,
    "altered": alter,
    "duplicated": duplicate,
    "phantom": make_up,
    "reordered": move,
}


@settings(deadline=None, max_examples=60)
@given(
    plan=st.lists(st.sampled_from(["none", *FAULTS]), min_size=1, max_size=COUNT),
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_every_fault_of_any_set_is_found_under_its_own_name(plan: list[str], steps: list[int]) -> None:
    """Whatever the ranges are in which the queue is read."""
    client = FakeClient(topics={"orders": 1})
    entries = [entry_of(i, ACKNOWLEDGED, i, stored(client, i)) for i in range(len(plan))]
    queue = client.records["orders", 0]
    expected: dict[str, set[str]] = {}
    for number, kind in enumerate(plan):
        if kind != "none":
            FAULTS[kind](queue, number)
            producer = 3 if kind == "phantom" else 0
            expected.setdefault(kind, set()).add(CONTENT.message_id(producer, number))
    evidence = Evidence(RunHeader("orders", CONTENT, 1, {PLACE: 0}, 1))
    evidence.load(entries, lambda _: None)
    evidence.loaded(ended=True)
    begin, turn = 0, 0
    while begin < len(queue):
        end = min(begin + steps[turn % len(steps)], len(queue))
        evidence.compare(PLACE, begin, end, {i: decode_message(queue[i]) for i in range(begin, end)}, set())
        begin, turn = end, turn + 1
    evidence.settle()
    named: dict[str, set[str]] = {}
    for fault in evidence.findings.faults():
        named.setdefault(str(fault["kind"]), set()).add(str(fault["messageId"]))
    evidence.close()
    assert evidence.findings.counts == {kind: plan.count(kind) for kind in KINDS}
    assert all(named.get(kind, set()) <= names for kind, names in expected.items())
    assert named.keys() == expected.keys()


# --- the verbs ------------------------------------------------------------------------------------------


def test_what_produce_writes_check_finds(run: CommandLine, client: VerifyClient, tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    options = ("--rate", "2000", "--seconds", "0.05", "--producers", "2", "--size", "64", "--keys", "3")
    ran = run("--json", "verify", "produce", "fresh", "--ledger", path, *options, "--seed", "11")
    assert (ran.code, ran.err) == (0, "")
    (summary,) = ran.objects
    assert summary["seed"] == 11
    assert summary["sent"] == summary["acknowledged"] >= 2
    assert (summary["unknown"], summary["refused"], summary["givenUp"]) == (0, 0, 0)
    assert client.topics["fresh"] == 8  # it was made
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert sum(line.get("outcome") == "acknowledged" for line in lines) == summary["sent"]
    bodies = {sha256(RunContent(11, 64, 3).body(0, 0)).hexdigest()}
    assert bodies <= {line.get("bodySha256") for line in lines}
    checked = run("--json", "verify", "check", "--ledger", path)
    assert (checked.code, checked.objects[0]["acknowledged"]) == (0, summary["sent"])


def test_people_see_the_verdict(run: CommandLine, planted: Run) -> None:
    planted.write()
    ran = run("verify", "check", "--ledger", str(planted.path))
    assert (ran.code, "✓ nothing is wrong" in ran.out.decode()) == (0, True)
    del planted.queue[-1]
    ran = run("verify", "check", "--ledger", str(planted.path))
    text = ran.out.decode()
    assert (ran.code, "✗ something is wrong" in text) == (1, True)
    assert planted.names(23)[0] in text
    assert "not found by queueOffset" in text


def test_wrong_usage(run: CommandLine, planted: Run) -> None:
    planted.write()
    path = str(planted.path)
    assert run("verify", "check", "--ledger", path, "--sample", "some").code == 2
    assert run("verify", "produce", "orders", "--ledger", path, "--rate", "0", "--seconds", "1").code == 2
    existing = run("--json", "verify", "produce", "orders", "--ledger", path, "--rate", "1", "--seconds", "1")
    assert (existing.code, existing.note["error"]) == (1, "REQUEST_ILLEGAL")
    missing = run("--json", "verify", "check", "--ledger", path + "-none")
    assert (missing.code, missing.note["error"]) == (1, "REQUEST_ILLEGAL")
