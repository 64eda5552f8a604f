"""The server's side of one gRPC call, without gRPC: for handlers that are called in process."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc


class Aborted(grpc.aio.AbortError):  # type: ignore[misc]  # grpc has no types
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class RpcContext:
    """Requests of a stream come from `requests`, its replies go to `written`."""

    address = "ipv4:127.0.0.1:5000"
    by_tls = False

    def __init__(
        self, client_id: str = "client-1", *, deadline_s: float | None = None, **metadata: str
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in metadata.items()}
        self.metadata = {"x-mq-client-id": client_id, **named} if client_id else named
        self.deadline_s = deadline_s
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[Any] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.writing = 0
        self.is_done = False

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.metadata.items())

    def peer(self) -> str:
        return self.address

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"ssl"]} if self.by_tls else {}

    def time_remaining(self) -> float | None:
        return self.deadline_s

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return self.is_done

    async def read(self) -> Any:
        return await self.requests.get()

    async def write(self, message: Any) -> None:
        assert not self.writing, "two elements are written at the same time"
        self.writing += 1
        try:
            await asyncio.sleep(0)
            await self.may_write.wait()
            self.written.append(message)
        finally:
            self.writing -= 1

    async def write_now(self, message: Any) -> None:
        """Writes, without an iteration of the loop."""
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str = "", _metadata: object = ()) -> None:
        raise Aborted(code, details)
