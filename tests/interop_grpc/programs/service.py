"""The server's side: grpc.testing.TestService, on either transport."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from tests.interop_grpc.programs import interop_pb2 as pb
from tests.interop_grpc.programs.methods import METHODS, SERVICE, zeros
from tests.interop_grpc.programs.transports import Transport

__all__ = ["start"]

ECHO_INITIAL: Final = "x-grpc-test-echo-initial"
ECHO_TRAILING: Final = "x-grpc-test-echo-trailing-bin"

Context = Any
Outputs = AsyncIterator[pb.StreamingOutputCallResponse]
OutputRequests = AsyncIterator[pb.StreamingOutputCallRequest]


class TestService:
    """Each method takes a request (or an iterator of them) and the call's context, as grpc.aio's handlers
    do.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(self, rpc: Transport) -> None:
        self._rpc = rpc
        self._codes = {code.value[0]: code for code in rpc.StatusCode}

    async def empty_call(self, request: pb.Empty, context: Context) -> pb.Empty:
        del request, context
        return pb.Empty()

    async def unary_call(self, request: pb.SimpleRequest, context: Context) -> pb.SimpleResponse:
        await self._check_compressed(request, context)
        if request.response_compressed.value:
            context.set_compression(self._rpc.Compression.Gzip)
            await context.send_initial_metadata(())  # without it grpc.aio does not compress a unary answer
        else:
            await self._echo_metadata(context)
        await self._echo_status(request, context)
        return pb.SimpleResponse(payload=zeros(request.response_size))

    async def streaming_output_call(
        self, request: pb.StreamingOutputCallRequest, context: Context
    ) -> Outputs:
        if any(parameters.compressed.value for parameters in request.response_parameters):
            context.set_compression(self._rpc.Compression.Gzip)
        await self._echo_metadata(context)
        async for response in self._outputs(request.response_parameters, context):
            yield response
        await self._echo_status(request, context)

    async def streaming_input_call(
        self, requests: AsyncIterator[pb.StreamingInputCallRequest], context: Context
    ) -> pb.StreamingInputCallResponse:
        size = 0
        async for request in requests:
            await self._check_compressed(request, context)
            size += len(request.payload.body)
        return pb.StreamingInputCallResponse(aggregated_payload_size=size)

    async def full_duplex_call(self, requests: OutputRequests, context: Context) -> Outputs:
        await self._echo_metadata(context)
        async for request in requests:
            await self._echo_status(request, context)
            async for response in self._outputs(request.response_parameters, context):
                yield response

    async def half_duplex_call(self, requests: OutputRequests, context: Context) -> Outputs:
        kept = [request async for request in requests]
        for request in kept:
            async for response in self._outputs(request.response_parameters, context):
                yield response

    async def _outputs(self, wanted: Iterable[pb.ResponseParameters], context: Context) -> Outputs:
        for parameters in wanted:
            if parameters.interval_us:
                await asyncio.sleep(parameters.interval_us / 1e6)
            if not parameters.compressed.value:
                context.disable_next_message_compression()
            yield pb.StreamingOutputCallResponse(payload=zeros(parameters.size))

    async def _echo_metadata(self, context: Context) -> None:
        for key, value in context.invocation_metadata() or ():
            if key == ECHO_INITIAL:
                await context.send_initial_metadata(((key, value),))
            elif key == ECHO_TRAILING:
                context.set_trailing_metadata(((key, value),))

    async def _echo_status(
        self, request: pb.SimpleRequest | pb.StreamingOutputCallRequest, context: Context
    ) -> None:
        if request.HasField("response_status") and request.response_status.code:
            code = self._codes[request.response_status.code]
            await context.abort(code, request.response_status.message)

    async def _check_compressed(
        self, request: pb.SimpleRequest | pb.StreamingInputCallRequest, context: Context
    ) -> None:
        """grpcio does not say how a message came; there this is not checked."""
        came = getattr(context, "message_compressed", None)
        if (
            came is not None
            and request.HasField("expect_compressed")
            and request.expect_compressed.value != came
        ):
            what = "was not" if request.expect_compressed.value else "was"
            await context.abort(self._rpc.StatusCode.INVALID_ARGUMENT, f"the request {what} compressed")


def _handlers(rpc: Transport) -> Any:
    service = TestService(rpc)
    handlers = {
        method.name: getattr(rpc, f"{method.kind}_rpc_method_handler")(
            getattr(service, name),
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
        for name, method in METHODS.items()
    }
    return rpc.method_handlers_generic_handler(SERVICE, handlers)


async def start(
    rpc: Transport, address: str, certificate: tuple[bytes, bytes] | None = None
) -> tuple[Any, int]:
    """Start a server. `certificate` is a PEM key and chain, for TLS. Returns the server and its port."""
    # h2spec takes the least frame size for granted.
    server = rpc.server(options=[("grpc.http2.max_frame_size", 16_384)])
    server.add_generic_rpc_handlers((_handlers(rpc),))
    if certificate:
        port = server.add_secure_port(address, rpc.ssl_server_credentials((certificate,)))
    else:
        port = server.add_insecure_port(address)
    await server.start()
    return server, port
