"""A store that leads, and one that follows it by raw appends, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.atomic import SEGMENT, batch_of
from tests.support.engine import NOW_MS, append, flush, read_queue, record
from tests.support.raw_runs import raw_runs
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_proto.records.hashes import index_hash
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.transaction_run import TransactionRun, run_size_max
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state
from trovemq_store.settings import StoreSettings

TOPICS = ("orders", "bills")
QUEUES = 2


@dataclass(frozen=True)
class Sent:
    """One append: its records' ends, topics, queues and bodies. whole: it is a transaction."""

    ends: list[int]
    places: list[tuple[str, int, bytes]]
    whole: bool


@dataclass
class Leader:
    """A store that appends messages and transactions, and its appends."""

    settings: StoreSettings = SEGMENT
    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    sent: list[Sent] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.store = MessageStore.open(self.files, self.settings, NOW_MS, process_id=1)

    def bodies(self, count: int, size: int) -> list[bytes]:
        self.count += count
        return [b"%06d" % (self.count - count + n) + b"." * size for n in range(count)]

    def send(self, topic: str, queue_id: int, count: int, size: int = 100) -> None:
        """One append of `count` messages, each with its body's number as its key."""
        bodies = self.bodies(count, size)
        records = [
            record(body, topic=topic, queue_id=QueueId(queue_id), keys=body[:6].decode()) for body in bodies
        ]
        now_ms = NOW_MS.__class__(NOW_MS + self.count)
        result = append(self.store, *records, topic=topic, queue_id=QueueId(queue_id), now_ms=now_ms)
        self._note(result.physical_offset, [(topic, queue_id, body) for body in bodies], whole=False)

    def transact(self, count: int, size: int = 100) -> None:
        """One transaction of `count` messages over both topics and all queues."""
        run = TransactionRun(f"tx-{self.count}", run_size_max(self.settings.commit_log_file_size))
        places: list[tuple[str, int, bytes]] = []
        for number, body in enumerate(self.bodies(count, size)):
            topic, queue_id = TOPICS[number % 2], number // 2 % QUEUES
            run.add(batch_of(topic, QueueId(queue_id), [body], self.settings), topic, QueueId(queue_id))
            places.append((topic, queue_id, body))
        now_ms = NOW_MS.__class__(NOW_MS + self.count)
        self._note(run.append_to(self.store, now_ms).physical_offset, places, whole=True)

    def _note(self, begin: PhysicalOffset, places: list[tuple[str, int, bytes]], *, whole: bool) -> None:
        ends: list[int] = []
        at = int(begin)
        for _ in places:
            at += int.from_bytes(self.store.log.read(PhysicalOffset(at), 4))
            ends.append(at)
        self.sent.append(Sent(ends, places, whole))

    @property
    def record_ends(self) -> list[int]:
        return [end for sent in self.sent for end in sent.ends]

    def visible_below(self, end: int) -> dict[tuple[str, int], list[bytes]]:
        """The bodies of each queue that a reader may see if the log is committed up to `end`."""
        queues: dict[tuple[str, int], list[bytes]] = {}
        for sent in self.sent:
            if sent.whole and sent.ends[-1] > end:
                break
            for record_end, (topic, queue_id, body) in zip(sent.ends, sent.places, strict=True):
                if record_end <= end:
                    queues.setdefault((topic, queue_id), []).append(body)
        return queues


def follower(
    files: MemoryFileSystem,
    commit_limit: PhysicalOffset | None = LOG_ORIGIN,
    settings: StoreSettings = SEGMENT,
) -> MessageStore:
    return MessageStore.open(files, settings, NOW_MS, process_id=2, commit_limit=commit_limit)


def copy(
    leader: MessageStore,
    store: MessageStore,
    end: PhysicalOffset | None = None,
    cuts: Iterable[int] = (),
    *,
    synced: bool = True,
) -> None:
    """Appends the leader's log up to `end`, in runs that end at `cuts`, and syncs it."""
    end = leader.end_offset if end is None else end
    for run in raw_runs(leader.log, store.end_offset, end, cuts):
        store.append_raw(*run)
    if synced:
        flush(store)
    else:
        store.dispatch()


def commit(store: MessageStore, limit: PhysicalOffset) -> None:
    store.limit_commits(limit)
    store.dispatch()


def saved_commit(files: MemoryFileSystem) -> PhysicalOffset:
    """The commit offset that a node finds at its start."""
    saved = state.load(files)
    assert saved is not None
    assert isinstance(saved.commit_offset, int)
    return saved.commit_offset


def bodies(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """The bodies of each queue, as readers see them."""
    return {
        (topic, queue.queue_id): [message.body for message in read_queue(store, topic, queue.queue_id)]
        for topic in TOPICS
        for queue in store.consume_queues.queues(topic)
        if queue.max_offset > queue.min_offset
    }


def files_of(files: MemoryFileSystem, directory: str) -> dict[str, bytes]:
    """The content of the directory's files, without segments of zeros."""
    found: dict[str, bytes] = {}
    for path in sorted(files._files):
        if path.startswith(f"{directory}/") and any(files._files[path].data):
            found[path] = bytes(files._files[path].data)
    return found


def indexed(store: MessageStore, leader: Leader) -> dict[str, list[PhysicalOffset]]:
    """Where the key index finds each key."""
    assert store.key_index is not None
    while store.catch_up(1 << 20):
        pass
    end = store.visible_offset
    return {
        f"{topic} {key}": list(store.key_index.candidates(index_hash(topic, key), LOG_ORIGIN, end))
        for topic in TOPICS
        for key in map("{:06d}".format, range(leader.count))
    }
