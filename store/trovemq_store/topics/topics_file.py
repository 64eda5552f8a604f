"""The topics on disk: the whole table in `config/topics.json`, or changes of it in a journal beside that.

A small table is written as a whole for each change, as in RocketMQ. With JOURNAL_FROM topics or more, a
change is appended to the journal, and the whole table is written when the journal is full, and at a clean
stop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from zlib import crc32

from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject, object_member, render
from trovemq_store.topics.topic_journal import TopicJournal, is_written, with_changes

TOPICS_PATH: Final = "config/topics.json"
JOURNAL_FROM: Final = 256
_TABLE: Final = "topicConfigTable"
_NO_TOPICS: Final = f'\n\t"{_TABLE}":{{}}'


class TopicsFile:
    """The topics on disk of one store. Call load() first."""

    def __init__(self, files: FileSystem) -> None:
        self._file = JsonFile(files, TOPICS_PATH)
        self.journal = TopicJournal(files)
        self._head: JsonObject = {}
        self._texts: dict[str, str] = {}
        self._whole_next = False
        """The journal's entries do not belong to the present topics.json: the next save writes the whole
        table."""
        self._from_journal = False

    @property
    def fault(self) -> str:
        return self._file.fault

    @property
    def crc(self) -> int | None:
        return self._file.crc

    @property
    def whole(self) -> bool:
        """Whether the topics were read from topics.json alone."""
        return not self._file.is_second_copy and not self._from_journal

    @property
    def is_second_copy(self) -> bool:
        return self._file.is_second_copy

    def load(self) -> JsonObject:
        """The document with the changes of the journal. TroveError STORE_FAILED; ValueError."""
        document = self._file.load() or {}
        changes, crc = self.journal.load(), crc32(self._file.content)
        if is_written(changes, crc, self.journal.base):
            self.journal.restart(crc)
        else:
            document = with_changes(document, changes)
            self._from_journal = True
            self._whole_next = self.journal.base != crc
        self._head = {name: {} if name == _TABLE else value for name, value in document.items()}
        self._texts = {name: _text(name, value) for name, value in object_member(document, _TABLE).items()}
        return document

    def begin_save(self, changes: Mapping[str, JsonObject | None], version: JsonObject) -> Callable[[], None]:
        """Returns the function that saves the changes, which may block and may run in another thread; a value
        of None deletes the topic."""
        texts = {name: None if value is None else _text(name, value) for name, value in changes.items()}
        entries: list[bytes] = []
        if len(self._texts) >= JOURNAL_FROM and not self._whole_next:
            entries = [_entry(name, value, version) for name, value in changes.items()]
        content = b""
        if not entries or not self.journal.has_space(entries):
            content = self._content({**self._texts, **texts}, version)
        return partial(self._save, texts, content, entries)

    def _save(self, texts: Mapping[str, str | None], content: bytes, entries: list[bytes]) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; then the disk is as it was."""
        fault_point("topics.before_save")
        if content:
            self._write_content(content)
        else:
            self.journal.append(entries)
        fault_point("topics.after_save")
        for name, text in texts.items():
            if text is None:
                self._texts.pop(name, None)
            else:
                self._texts[name] = text

    def put(self, name: str, value: JsonObject | None) -> None:
        """The next content has this topic; None: it has not."""
        if value is None:
            self._texts.pop(name, None)
        else:
            self._texts[name] = _text(name, value)

    def capture(self, version: JsonObject) -> Callable[[], bytes]:
        """Returns the function that renders the present content; it may run in another thread."""
        return partial(self._content, dict(self._texts), version)

    def write(self, content: bytes) -> None:
        """Replaces topics.json; there is no journal then. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR;
        StorageError."""
        self._write_content(content)
        self.journal.remove()

    def write_all(self, version: JsonObject) -> None:
        """Writes the whole file and removes the journal, so that changes by another broker count. May block.
        TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; StorageError."""
        if self.journal.entry_count:
            self._write_content(self._content(self._texts, version))
        self.journal.remove()

    def _write_content(self, content: bytes) -> None:
        """Replaces topics.json. File and journal together have all changes at every moment."""
        crc = crc32(content)
        self.journal.note_written(crc)
        self._file.save_content(content, mirror=len(self._texts) >= JOURNAL_FROM)
        self.journal.restart(crc)
        self._whole_next = False

    def _content(self, texts: Mapping[str, str | None], version: JsonObject) -> bytes:
        """The bytes that lax_json renders of the document, made without rendering each topic again."""
        head = render({**self._head, "dataVersion": version, _TABLE: {}}).decode("utf-8", "surrogatepass")
        lines = ",\n".join(text for text in texts.values() if text is not None)
        if lines:
            head = head.replace(_NO_TOPICS, f'\n\t"{_TABLE}":{{\n{lines}\n\t}}', 1)
        return head.encode("utf-8", "surrogatepass")


def _text(name: str, value: object) -> str:
    text = json.dumps(value, indent="\t", separators=(",", ":"), ensure_ascii=False)
    return f"\t\t{json.dumps(name, ensure_ascii=False)}:" + text.replace("\n", "\n\t\t")


def _entry(name: str, value: JsonObject | None, version: JsonObject) -> bytes:
    return json.dumps({"topic": name, "value": value, "dataVersion": version}).encode()
