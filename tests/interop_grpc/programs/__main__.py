"""The two programs' command lines.

    python -m tests.interop_grpc.programs server --listen HOST:PORT [--tls-cert F --tls-key F]
    python -m tests.interop_grpc.programs client --server HOST:PORT --case NAME
        [--ca-cert F [--server-name NAME]]

The server prints `listening on HOST:PORT` when it serves, with the port that it got where PORT is 0, and
ends on SIGTERM or SIGINT. The client ends with 0 where the case passes, else with 1 and says why. `--case
all` runs all.
"""

import argparse
import asyncio
import importlib
import signal
import sys
from pathlib import Path
from typing import Any

from tests.interop_grpc.programs.cases import CASES, Peer
from tests.interop_grpc.programs.service import start
from tests.interop_grpc.programs.transports import TRANSPORTS, transport

CASE_TIMEOUT_S = 120  # the soaks of a slow peer take half of it


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.interop_grpc.programs", description=__doc__.split("\n", 1)[0]
    )
    programs = parser.add_subparsers(dest="program", required=True)
    server = programs.add_parser("server", help="serve grpc.testing.TestService")
    server.add_argument("--listen", required=True, metavar="HOST:PORT")
    server.add_argument("--tls-cert", type=Path, metavar="F", help="certificate chain in PEM")
    server.add_argument("--tls-key", type=Path, metavar="F", help="its private key in PEM")
    client = programs.add_parser("client", help="run a case against a server")
    client.add_argument("--server", required=True, metavar="HOST:PORT")
    client.add_argument(
        "--case", required=True, choices=[*CASES, "all"], metavar="NAME", help=", ".join(CASES)
    )
    client.add_argument("--ca-cert", type=Path, metavar="F", help="use TLS and trust this authority (PEM)")
    client.add_argument(
        "--server-name", metavar="NAME", help="the name that the server's certificate must have"
    )
    for program in (server, client):
        program.add_argument("--transport", choices=TRANSPORTS, default="native")
    chosen = parser.parse_args(arguments)
    if chosen.program == "server" and bool(chosen.tls_cert) != bool(chosen.tls_key):
        parser.error("--tls-cert and --tls-key go together")
    return chosen


async def _serve(chosen: argparse.Namespace) -> int:
    certificate = None
    if chosen.tls_cert:
        certificate = (chosen.tls_key.read_bytes(), chosen.tls_cert.read_bytes())
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server, port = await start(transport(chosen.transport), chosen.listen, certificate)
    print(f"listening on {chosen.listen.rpartition(':')[0]}:{port}", flush=True)
    await ended.wait()
    await server.stop(1.0)
    return 0


def _peer(chosen: argparse.Namespace) -> Peer:
    rpc = transport(chosen.transport)

    def connect() -> Any:
        if not chosen.ca_cert:
            return rpc.insecure_channel(chosen.server)
        options = [("grpc.ssl_target_name_override", chosen.server_name)] if chosen.server_name else []
        credentials = rpc.ssl_channel_credentials(chosen.ca_cert.read_bytes())
        return rpc.secure_channel(chosen.server, credentials, options=options)

    return Peer(rpc, connect)


async def _run_case(peer: Peer, name: str) -> bool:
    try:
        await asyncio.wait_for(CASES[name](peer), CASE_TIMEOUT_S)
    except Exception as e:
        print(f"{name}: FAILED: {type(e).__name__}: {' '.join(str(e).split())}", flush=True)
        return False
    print(f"{name}: passed", flush=True)
    return True


async def _run(chosen: argparse.Namespace) -> int:
    peer = _peer(chosen)
    try:
        names = list(CASES) if chosen.case == "all" else [chosen.case]
        results = [await _run_case(peer, name) for name in names]
    finally:
        await peer.channel.close()
    return 0 if all(results) else 1


def _uvloop_where_installed() -> Any:
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None


def main(arguments: list[str] | None = None) -> int:
    chosen = _arguments(arguments)
    program = _serve if chosen.program == "server" else _run
    with asyncio.Runner(loop_factory=_uvloop_where_installed()) as runner:
        return runner.run(program(chosen))


if __name__ == "__main__":
    sys.exit(main())
