"""`make bench ARGS=rpc`: our transport beside grpc.aio and a bare TCP echo, in one run."""
