"""The methods of grpc.testing.TestService: path, kind, message types."""

from typing import Any, Final, NamedTuple

from tests.interop_grpc.programs import interop_pb2 as pb

__all__ = ["METHODS", "SERVICE", "Method", "zeros"]

SERVICE: Final = "grpc.testing.TestService"


class Method(NamedTuple):
    """`kind` is the middle of grpcio's names: unary_unary, unary_stream, stream_unary, stream_stream."""

    name: str
    kind: str
    request: Any
    response: Any
    service: str = SERVICE

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


METHODS: Final = {
    "empty_call": Method("EmptyCall", "unary_unary", pb.Empty, pb.Empty),
    "unary_call": Method("UnaryCall", "unary_unary", pb.SimpleRequest, pb.SimpleResponse),
    "streaming_output_call": Method(
        "StreamingOutputCall", "unary_stream", pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse
    ),
    "streaming_input_call": Method(
        "StreamingInputCall", "stream_unary", pb.StreamingInputCallRequest, pb.StreamingInputCallResponse
    ),
    "full_duplex_call": Method(
        "FullDuplexCall", "stream_stream", pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse
    ),
    "half_duplex_call": Method(
        "HalfDuplexCall", "stream_stream", pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse
    ),
}

UNIMPLEMENTED_METHOD: Final = Method("UnimplementedCall", "unary_unary", pb.Empty, pb.Empty)
UNIMPLEMENTED_SERVICE: Final = UNIMPLEMENTED_METHOD._replace(service="grpc.testing.UnimplementedService")


def zeros(size: int) -> pb.Payload:
    return pb.Payload(body=bytes(size))
