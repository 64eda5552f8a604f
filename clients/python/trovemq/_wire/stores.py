"""The calls of StoreService on one connection: the SDK's own values out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from trovemq.models.store import BackupProgress, ScrubProgress, StoreFinding
from trovemq_proto.v1 import store_pb2

from .connection import Connection

_SERVICE = "/trovemq.v1.StoreService/"


class StoreCalls:
    """StoreService of the broker called `broker`; every failure is a TroveError."""

    def __init__(self, connection: Connection, broker: str) -> None:
        self._connection = connection
        self._broker = broker

    async def scrub(self, bytes_per_second: int) -> AsyncGenerator[ScrubProgress, None]:
        request = store_pb2.ScrubRequest(bytes_per_second=bytes_per_second)
        decode = store_pb2.ScrubReply.FromString
        async with aclosing(self._connection.replies(_SERVICE + "Scrub", request, decode)) as replies:
            async for reply in replies:
                yield self._scrub_progress(reply)

    def _scrub_progress(self, reply: store_pb2.ScrubReply) -> ScrubProgress:
        findings = (
            StoreFinding(
                file=found.file, offset=found.offset, what=found.what, note=found.note, broker=self._broker
            )
            for found in reply.findings
        )
        return ScrubProgress(
            broker=self._broker,
            findings=tuple(findings),
            position=reply.position,
            begin=reply.begin,
            end=reply.end,
            records=reply.records,
            units=reply.units,
            items=reply.items,
            damages=reply.damages,
            notes=reply.notes,
            done=reply.done,
        )

    async def backup(
        self, directory: str, bytes_per_second: int, copy: bool
    ) -> AsyncGenerator[BackupProgress, None]:
        request = store_pb2.BackupRequest(directory=directory, bytes_per_second=bytes_per_second, copy=copy)
        decode = store_pb2.BackupReply.FromString
        async with aclosing(self._connection.replies(_SERVICE + "Backup", request, decode)) as replies:
            async for reply in replies:
                yield BackupProgress(
                    broker=self._broker,
                    files_done=reply.files_done,
                    files_total=reply.files_total,
                    bytes_done=reply.bytes_done,
                    bytes_total=reply.bytes_total,
                    log_begin=reply.log_begin,
                    log_end=reply.log_end,
                    linked_files=reply.linked_files,
                    done=reply.done,
                )
