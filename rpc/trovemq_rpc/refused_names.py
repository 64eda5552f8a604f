"""The names of grpc.aio and of grpc that this package does not have, and what to do without each."""

from __future__ import annotations

from typing import Final

_CALL_CREDENTIALS: Final = "send the token as metadata of the call"
_CLIENT_INTERCEPTOR: Final = "call the stub's methods by functions of your own, which add metadata"
_SERVER_INTERCEPTOR: Final = "add handlers that are wrapped in functions of your own"
_CREDENTIALS: Final = "TLS, mutual TLS and plain connections only: use ssl_channel_credentials"
_SERVER_CREDENTIALS: Final = "TLS, mutual TLS and plain connections only: use ssl_server_credentials"
_NEW_CERTIFICATE: Final = "ServerCredentials.use(context) gives connections from then on another certificate"
_PROTOS: Final = "generate the code by grpcio-tools"
_SYNCHRONOUS: Final = "it belongs to grpc's synchronous interface: await the call instead"

REFUSED: Final = {
    "init_grpc_aio": "nothing needs to be initialised: leave the call out",
    "shutdown_grpc_aio": "nothing needs to be shut down: leave the call out",
    "AuthMetadataContext": _CALL_CREDENTIALS,
    "AuthMetadataPlugin": _CALL_CREDENTIALS,
    "AuthMetadataPluginCallback": _CALL_CREDENTIALS,
    "CallCredentials": _CALL_CREDENTIALS,
    "access_token_call_credentials": _CALL_CREDENTIALS,
    "composite_call_credentials": _CALL_CREDENTIALS,
    "composite_channel_credentials": _CALL_CREDENTIALS,
    "metadata_call_credentials": _CALL_CREDENTIALS,
    "LocalConnectionType": _CREDENTIALS,
    "alts_channel_credentials": _CREDENTIALS,
    "compute_engine_channel_credentials": _CREDENTIALS,
    "local_channel_credentials": _CREDENTIALS,
    "xds_channel_credentials": _CREDENTIALS,
    "alts_server_credentials": _SERVER_CREDENTIALS,
    "insecure_server_credentials": "use add_insecure_port",
    "local_server_credentials": _SERVER_CREDENTIALS,
    "xds_server_credentials": _SERVER_CREDENTIALS,
    "ServerCertificateConfiguration": _NEW_CERTIFICATE,
    "dynamic_ssl_server_credentials": _NEW_CERTIFICATE,
    "ssl_server_certificate_configuration": _NEW_CERTIFICATE,
    "Future": _SYNCHRONOUS,
    "FutureCancelledError": _SYNCHRONOUS,
    "FutureTimeoutError": _SYNCHRONOUS,
    "channel_ready_future": "await channel.channel_ready() instead",
    "ServerInterceptor": _SERVER_INTERCEPTOR,
    "ClientInterceptor": _CLIENT_INTERCEPTOR,
    "UnaryUnaryClientInterceptor": _CLIENT_INTERCEPTOR,
    "UnaryStreamClientInterceptor": _CLIENT_INTERCEPTOR,
    "StreamUnaryClientInterceptor": _CLIENT_INTERCEPTOR,
    "StreamStreamClientInterceptor": _CLIENT_INTERCEPTOR,
    "InterceptedUnaryUnaryCall": _CLIENT_INTERCEPTOR,
    "ClientCallDetails": _CLIENT_INTERCEPTOR,
    "intercept_channel": _CLIENT_INTERCEPTOR,
    "RpcError": "catch AioRpcError; where grpcio is loaded, it derives from grpc.RpcError",
    "Status": "abort_with_status takes any object with code, details and trailing_metadata",
    "GenericRpcHandler": "any object with the method service(handler_call_details) is one",
    "RpcMethodHandler": "unary_unary_rpc_method_handler and the three beside it make one",
    "ServiceRpcHandler": "method_handlers_generic_handler makes one",
    "protos": _PROTOS,
    "protos_and_services": _PROTOS,
    "services": _PROTOS,
}


def why_not(name: str) -> str:
    """The text of the AttributeError for a name that the package does not have."""
    reason = REFUSED.get(name)
    return f"trovemq_rpc has no {name}" + (f"; {reason}" if reason else "")


def refuse_interceptors(interceptors: object) -> None:
    """Raises NotImplementedError if there are any: else a check of theirs would be left out silently."""
    if interceptors:
        raise NotImplementedError(
            "interceptors are not supported: wrap the handlers of a server, or the calls of a stub"
        )
