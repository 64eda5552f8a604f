"""Records frames of real programs as data of tests: tests/data/remoting-frames.jsonl.

    python -m tests.conformance.record_frames [PROGRAM ...]

Each program runs its suite through a proxy on loopback, whose address our broker gives to clients. Of each
request, and of each answer to it, the first one of a moderate size is kept, by program and side. Lines of
programs that are not named stay as they are.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.conformance.run import BUILD, HERE, apply_topics, print_table, run_suite
from tests.integration.port_forwarder import PART_SIZE_MAX, PortForwarder
from trovemq.testing import BrokerProcess
from trovemq_proto.remoting.frame import FrameSplitter, frame_prefix

FILE: Final = HERE.parent / "data" / "remoting-frames.jsonl"
SIZE_MAX: Final = 1_500
PROGRAMS: Final = ("remoting", "remoting4", "remoting_go", "mqadmin", "spring")
CLIENT, BROKER = "client", "broker"


class Recorder(PortForwarder):
    """`lines`: by sender, request, and whether it is an answer."""

    def __init__(self, program: str) -> None:
        super().__init__("127.0.0.1:0")
        self._program = program
        self.lines: dict[tuple[str, int, bool], str] = {}

    def aim(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection(*self._target)
        asked: dict[tuple[str, int], int] = {}
        await asyncio.gather(
            self._pass_on(reader, back, CLIENT, asked), self._pass_on(there, writer, BROKER, asked)
        )

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sender: str,
        asked: dict[tuple[str, int], int],
    ) -> None:
        splitter = FrameSplitter()
        with suppress(OSError):
            while part := await reader.read(PART_SIZE_MAX):
                for form, header_bytes, body in splitter.feed(memoryview(part)):
                    prefix = frame_prefix(form, len(header_bytes), len(body))
                    self._keep(sender, asked, b"".join((prefix, header_bytes, body)))
                writer.write(part)
                await writer.drain()
        writer.close()

    def _keep(self, sender: str, asked: dict[tuple[str, int], int], data: bytes) -> None:
        """`asked`: the codes of the requests of the connection, by their sender and number."""
        (frame,) = FrameSplitter().feed(memoryview(data))
        header = frame.header()
        if header.is_response:
            code = asked.get((BROKER if sender == CLIENT else CLIENT, header.opaque), -1)
        else:
            code = asked[sender, header.opaque] = header.code
        key = sender, code, header.is_response
        if code >= 0 and len(data) <= SIZE_MAX and key not in self.lines:
            self.lines[key] = json.dumps(
                {
                    "program": self._program,
                    "sender": sender,
                    "request": code,
                    "is_response": header.is_response,
                    "frame": base64.b64encode(data).decode(),
                }
            )


def recorded(program: str) -> Iterator[str]:
    """The lines of one program. RuntimeError: its suite does not run."""
    with (
        Recorder(program) as recorder,
        BrokerProcess(
            name="recorded",
            transactionCheckInterval=3000,
            transactionTimeOut=10_000,
            remoting_enable=True,
            advertise=recorder.address,
            ready_timeout=180,
        ) as broker,
    ):
        recorder.aim(broker.address)
        apply_topics(HERE / "topics.json", broker.address, {})
        outcome = run_suite(
            program, HERE, BUILD / "own", recorder.address, TIME_MAX_S="300", AT_ONCE="6", PATIENCE="3"
        )
        if outcome.skipped or outcome.problem:
            raise RuntimeError(f"{program}: {outcome.skipped or outcome.problem}")
        print_table([outcome])
        yield from (recorder.lines[key] for key in sorted(recorder.lines))


def main() -> int:
    parser = argparse.ArgumentParser(description="Records frames of real programs.")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), help=", ".join(PROGRAMS))
    chosen = parser.parse_args().programs
    kept = FILE.read_text().splitlines() if FILE.exists() else []
    lines = [line for line in kept if json.loads(line)["program"] not in chosen]
    for program in chosen:
        lines += recorded(program)
        Path(FILE).write_text("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
