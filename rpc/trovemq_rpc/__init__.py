"""gRPC for asyncio: a server and a channel with grpc.aio's names, on an HTTP/2 core that knows no socket."""
