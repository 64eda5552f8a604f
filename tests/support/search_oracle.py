"""The right answers of the job `search`, message by message, and the stores and archives that it searches."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.engine import NOW_MS, SMALL, append, open_store, own_properties, record
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import Message, RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import FileLayout, ParquetFile
from trovemq_spark.jobs.search import SearchArguments
from trovemq_spark.search.pieces import answers
from trovemq_spark.search.question import Question
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.store_time import AHEAD_FOR_MS
from trovemq_store.files.real import RealFileSystem

# Pairs of equal Java hashes: the key index cannot distinguish them.
COLLIDING_KEYS = ("AaAa", "AaBB", "BBAa", "BBBB", "Aa", "BB")


def living_messages(store: Path) -> list[Message]:
    """Every message of a store that is not of a deleted topic, in log order, decoded one by one."""
    view = StoreView.open(store)
    found = []
    for run in view.runs(LogScan()):
        alive = run.alive
        found += [m for i, m in enumerate(run.records.messages()) if alive is None or alive[i]]
    return found


# --- the oracle -----------------------------------------------------------------------------------------


def expected(messages: Sequence[Message], arguments: SearchArguments) -> list[str]:
    """The offsetMsgIds of the answer, in order, by looking at every message."""
    found = [message for message in messages if _answers(message, arguments)]
    newest = arguments.order == "newest"
    found.sort(key=lambda message: (message.store_timestamp, message.physical_offset), reverse=newest)
    return [message.offset_msg_id for message in found][: arguments.limit]


def _answers(message: Message, wanted: SearchArguments) -> bool:
    name, _, value = wanted.property.partition("=")
    return (
        (not wanted.topic or message.topic == wanted.topic)
        and (not wanted.key or wanted.key in message.keys or wanted.key == message.unique_key)
        and (not wanted.message_id or message.unique_key == wanted.message_id)
        and (not wanted.offset_msg_id or message.offset_msg_id == wanted.offset_msg_id.upper())
        and (not wanted.tag or message.tags == wanted.tag)
        and wanted.begin_timestamp <= message.store_timestamp <= wanted.end_timestamp
        and (not name or message.properties.get(name) == value)
        and wanted.body_text.encode() in message.body
        and (not wanted.json_path or _json_at(message.body, wanted.json_path) == wanted.json_value)
    )


def _json_at(body: bytes, path: str) -> str | None:
    """Of paths such as `$.a.b` only; None where there is nothing."""
    try:
        value = json.loads(body)
        for name in path.split(".")[1:]:
            value = value[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else json.dumps(value)


# --- questions --------------------------------------------------------------------------------------------


def questions(messages: Sequence[Message], seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Arguments of searches: each a few conditions, most of them taken from a message that is there."""
    source = random.Random(seed)
    conditions: list[Callable[[Message], dict[str, Any]]] = [
        lambda m: {"key": source.choice([*m.keys, *COLLIDING_KEYS, m.unique_key or "no such key", "none"])},
        lambda m: {"key": source.choice([*m.keys, "x"]), "topic": m.topic},
        lambda m: {"key": source.choice([*m.keys, "xy"])[:-1] or "y"},
        lambda m: {"message_id": m.unique_key or "none"},
        lambda m: {"message_id": m.unique_key or "none", "topic": source.choice([m.topic, "other"])},
        lambda m: {"offset_msg_id": m.offset_msg_id.lower()},
        lambda m: {"offset_msg_id": m.offset_msg_id[:-1] + source.choice("0123456789ABCDEF")},
        lambda m: {"begin_timestamp": m.store_timestamp - source.choice([0, 1, 50])},
        lambda m: {"end_timestamp": m.store_timestamp + source.choice([-1, 0, 50])},
        lambda m: {"topic": m.topic},
        lambda m: {"tag": m.tags or "none"},
        lambda m: {"property": "=".join(source.choice([*own_properties(m).items(), ("none", "x")]))},
        lambda m: {"body_text": _some_text(m.body, source)},
        lambda m: {"json_path": "$.carrier", "json_value": source.choice(["AA", "B6", "é", "12", "none"])},
        lambda m: {"json_path": "$.flight.number", "json_value": str(source.randint(0, 30))},
    ]
    for _ in range(count):
        wanted: dict[str, Any] = {
            "limit": source.choice([1, 7, 10_000]),
            "order": source.choice(["newest", "oldest"]),
        }
        for condition in source.sample(conditions, source.choice([1, 1, 2])):
            wanted |= condition(source.choice(messages))
        if wanted.get("begin_timestamp", 0) <= wanted.get("end_timestamp", 1 << 62):
            yield wanted


def _some_text(body: bytes, source: random.Random) -> str:
    start = source.randrange(max(1, len(body) - 5))
    try:
        return body[start : start + 5].decode()
    except UnicodeDecodeError:
        return "nowhere"


# --- stores -----------------------------------------------------------------------------------------------


def make_store(directory: Path, seed: int, count: int = 300, *, steps: Collection[int] = ()) -> Path:
    """A store of small segments with colliding keys, JSON, compressed bodies and a deleted topic, closed.
    steps: numbers of messages before which the clock is set back by two hours."""
    source = random.Random(seed)
    store = open_store(RealFileSystem(directory), SMALL, topics=("orders", "flights", "gone"))
    now_ms = NOW_MS
    for number in range(count):
        now_ms += source.choice([0, 0, 1, 40])
        if number in steps:
            now_ms = _set_back(store, now_ms)
        topic = source.choice(["orders", "flights", "gone"])
        body, flag = _body(source, number)
        keys = " ".join(source.sample([*COLLIDING_KEYS, f"k{number}", "é", "k"], source.randint(0, 3)))
        made = record(
            body,
            topic=topic,
            queue_id=QueueId(number % 4),
            keys=keys,
            tag=source.choice(["", "paid", "late"]),
            unique_key=source.choice(["", f"U{number:08}", "AaBB"]),
            properties={"region": source.choice(["eu", "us"])} if number % 3 else {},
            sys_flag=flag,
        )
        append(store, made, topic=topic, queue_id=QueueId(number % 4), now_ms=now_ms)
        store.dispatch()
    store.delete_topic("gone", now_ms)
    store.close(now_ms)
    return directory


def _set_back(store: MessageStore, now_ms: EpochMs) -> EpochMs:
    now_ms = EpochMs(now_ms - 7_200_000)
    assert not store.tick(now_ms, store.time.steady_ms)
    assert store.tick(now_ms, store.time.steady_ms + AHEAD_FOR_MS)
    store.begin_time_step(now_ms)
    store.flush_projections()
    assert store.finish_time_step(now_ms)
    return now_ms


def _body(source: random.Random, number: int) -> tuple[bytes, int]:
    """(as stored, sysFlag)."""
    carrier = source.choice(["AA", "B6", "é"])
    value: dict[str, Any] = {"carrier": carrier, "flight": {"number": number % 30}, "more": [1, carrier]}
    text = json.dumps(value, ensure_ascii=source.random() < 0.5).encode()
    plain = source.choice([text, text, b"no JSON " + carrier.encode(), b"\xff\xfe" + text, b"["])
    if source.random() < 0.4:
        return zlib.compress(plain), SYS_FLAG_COMPRESSED
    return plain, 0


# --- half archived ----------------------------------------------------------------------------------------


def archive_half(store: Path, archive: Path, *, files: int = 3) -> None:
    """Archives the older half of the segments, and one more; removes the older half from the store. So some
    messages are in the archive only, some in both, some in the store only. Times stay as they are."""
    names = sorted(path.name for path in (store / "commitlog").iterdir() if path.name.isdigit())
    half = len(names) // 2
    last = names[min(half + 1, len(names) - 1)]
    archived = [m for m in living_messages(store) if half and m.physical_offset < int(last)]
    with Manifest.writing(archive, "test") as manifest:
        groups: dict[tuple[str, str], list[Message]] = {}
        for message in archived:
            day = datetime.fromtimestamp(message.store_timestamp / 1000, UTC).date().isoformat()
            groups.setdefault((message.topic, day), []).append(message)
        entries = []
        for (topic, day), members in groups.items():
            size = max(1, len(members) // files)
            parts = [members[begin : begin + size] for begin in range(0, len(members), size)]
            entries += [_write(manifest, topic, day, part) for part in parts]
        manifest.commit(entries, job="test")
    for name in names[:half]:
        (store / "commitlog" / name).unlink()


def _write(manifest: Manifest, topic: str, day: str, messages: list[Message]) -> Any:
    messages = sorted(messages, key=lambda message: (message.queue_id, message.queue_offset))
    with ParquetFile(manifest.place, topic, day, layout=FileLayout(row_group_rows=16)) as file:
        for begin in range(0, len(messages), 16):
            records = RecordBatch.split(b"".join(m.record for m in messages[begin : begin + 16]))
            for rows in answers(records, Question()):
                file.write(rows)
        return file.close()
