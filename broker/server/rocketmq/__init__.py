"""RocketMQ 5's gRPC protocol, as its official clients speak it."""
