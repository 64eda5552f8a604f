"""Most of gRPC's interoperability cases, in both directions with grpcio; `make interop-grpc` runs all."""

import asyncio
from typing import Any

import pytest

from tests.interop_grpc.programs.cases import CASES, Peer
from tests.interop_grpc.programs.service import start
from tests.interop_grpc.programs.transports import transport

LONG = {"rpc_soak", "channel_soak", "concurrent_large_unary"}
NOT_IN_GRPCIO = {
    "client_compressed_unary",  # its server does not say whether a request was compressed
    "client_compressed_streaming",
    "client_compressed_streaming_noprobe",  # its client compresses all messages of a stream or none
}


async def run_cases(client: str, server: str, cases: set[str]) -> dict[str, str]:
    """Why cases failed."""
    rpc: Any = transport(client)
    serving, port = await start(transport(server), "127.0.0.1:0")
    peer = Peer(rpc, lambda: rpc.insecure_channel(f"127.0.0.1:{port}"))
    failed = {}
    try:
        for case in sorted(cases):
            try:
                await asyncio.wait_for(CASES[case](peer), 20)
            except Exception as e:
                failed[case] = repr(e)
    finally:
        await peer.channel.close()
        await serving.stop(None)
    return failed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "server"), [("native", "native"), ("native", "grpcio"), ("grpcio", "native")]
)
@pytest.mark.asyncio
async def test_grpcs_interoperability_cases_pass(client: str, server: str) -> None:
    cases = CASES.keys() - LONG
    if "grpcio" in (client, server):
        cases -= NOT_IN_GRPCIO
    assert await run_cases(client, server, cases) == {}
