"""RocketMQ 5's gRPC protocol, for its official clients."""
