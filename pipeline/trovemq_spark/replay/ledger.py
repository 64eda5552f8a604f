"""The ledger of a replay: the acknowledged messages, so that an interrupted replay continues after them.

    LEDGER/replay.json                          which replay this is
    LEDGER/queues/TOPIC/BROKER-QUEUE.json       one source queue (BROKER is - if unknown)
    LEDGER/queues/TOPIC/BROKER-QUEUE.lock       held by the task that sends this queue
    LEDGER/lock                                 held by the job

replay.json: {"form": 1, "run": "…", "replay": {…}}; every sent message has `run`; `replay` are the arguments
that define which messages are sent where.

A queue's file: {"form": 1, "topic", "broker", "queueId", "targetTopic", "targetBroker", "targetQueueId",
"sourceOffset", "targetOffset", "sent", "inFlight"}

| member       | means                                                                                      |
|--------------|--------------------------------------------------------------------------------------------|
| sourceOffset | the last source offset that was sent and acknowledged, or left out as unsendable; -1: none |
| targetOffset | the target's messages below it were there, or acknowledged, when this was written          |
| sent         | messages acknowledged, over all runs                                                       |
| inFlight     | messages after sourceOffset may have been sent: those are in the target from targetOffset  |
|              | on, and are recognised by their properties (messages.py)                                   |

Each file is replaced as a whole: before the first message is sent, after each acknowledgement, and at the
end. One part is in flight at a time, and a part is stored in its order. So the messages that are found after
targetOffset are those after sourceOffset.

The locks are those of a file system. On an object store there are none: make sure that a run has ended, with
all its tasks, before the next one begins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.lock import locked
from trovemq_spark.storage import StoragePath

FORM: Final = 1
_HEAD: Final = "replay.json"
_LOCK: Final = "lock"
_JOB: Final = "replay"
LOCK_WAIT_SECONDS: Final = 60.0
"""How long a task of a killed run may take to finish its present send."""
_LOCK_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, order=True)
class SourceQueue:
    """Where messages come from; `broker` is "" if unknown."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        at = f", broker {self.broker}" if self.broker else ""
        return f"topic {self.topic}{at}, queue {self.queue_id}"


@dataclass(slots=True)
class QueueState:
    """The content of one queue's file; see the table above."""

    target_topic: str
    target_broker: str
    target_queue_id: int
    target_offset: int
    source_offset: int = -1
    sent: int = 0
    in_flight: bool = False


class Ledger:
    """The ledger in one directory. Picklable, so that tasks can use it."""

    def __init__(self, text: str) -> None:
        self.place: Final = StoragePath(text)

    def locked(self) -> AbstractContextManager[None]:
        """The lock of the job. Raises TroveError JOB_RUNNING."""
        return locked(self.place, _LOCK, _JOB)

    def begin(self, replay: Mapping[str, Any]) -> str:
        """The run's name: that of the existing ledger, or a new one. `replay`: plain values.

        Raises TroveError OPTION_ILLEGAL if the directory has the ledger of another replay, or something else.
        """
        wanted = json.loads(json.dumps(replay))
        if not self.place.exists(_HEAD):
            run = uuid4().hex
            self._write(_HEAD, {"form": FORM, "run": run, "replay": wanted})
            return run
        head = self._read(_HEAD)
        found = head.get("replay", {})
        other = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
        if other:
            was, now = found.get(other[0]), wanted.get(other[0])
            raise _illegal(
                f"{self.place} is the ledger of another replay: its {other[0]} is {was!r}, not {now!r}. "
                "Name another directory, or the same arguments to continue"
            )
        return str(head["run"])

    @asynccontextmanager
    async def holding(self, queue: SourceQueue) -> AsyncIterator[None]:
        """Holds a queue's lock; waits for a task that has it. Raises TroveError JOB_RUNNING."""
        give_up = asyncio.get_running_loop().time() + LOCK_WAIT_SECONDS
        while True:
            lock = locked(self.place, f"{_name(queue)}.lock", _JOB)
            try:
                lock.__enter__()
            except TroveError:
                if asyncio.get_running_loop().time() > give_up:
                    raise
            else:
                break
            await asyncio.sleep(_LOCK_LOOK_SECONDS)
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def load(self, queue: SourceQueue) -> QueueState | None:
        """The known state of a queue; None if nothing was sent. Raises TroveError OPTION_ILLEGAL
        (damaged)."""
        name = f"{_name(queue)}.json"
        if not self.place.exists(name):
            return None
        found = self._read(name)
        try:
            return QueueState(
                target_topic=str(found["targetTopic"]),
                target_broker=str(found["targetBroker"]),
                target_queue_id=int(found["targetQueueId"]),
                target_offset=int(found["targetOffset"]),
                source_offset=int(found["sourceOffset"]),
                sent=int(found["sent"]),
                in_flight=bool(found["inFlight"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _illegal(f"{self.place}/{name} is damaged: {error}") from error

    def save(self, queue: SourceQueue, state: QueueState) -> None:
        """Writes the state of a queue. Raises OSError."""
        words = {_camel(name): value for name, value in asdict(state).items()}
        source = {"topic": queue.topic, "broker": queue.broker, "queueId": queue.queue_id}
        self._write(f"{_name(queue)}.json", {"form": FORM, **source, **words})

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        self.place.write(name, json.dumps(document, indent=1).encode())

    def _read(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(self.place.read(name))
            if document["form"] != FORM:
                raise _illegal(
                    f"{self.place}/{name} was written by another version (form {document['form']})"
                )
        except (ValueError, KeyError, TypeError) as error:
            raise _illegal(f"{self.place}/{name} is not a ledger of a replay, or damaged: {error}") from error
        return dict(document)


def _name(queue: SourceQueue) -> str:
    broker = quote(queue.broker, safe="") or "-"
    return f"queues/{quote(queue.topic, safe='')}/{broker}-{queue.queue_id}"


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _illegal(message: str) -> TroveError:
    return TroveError(errors.OPTION_ILLEGAL, message, field="out")
