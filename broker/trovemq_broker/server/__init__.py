"""The gRPC services of both protocols, and the metrics. Generated protobuf types are used here and in
`cluster`, not in the engine's packages.

`native` and `rocketmq` have the services; both stand on `core` and `wire`, and neither imports the other.
`access` admits calls, `monitoring` counts them.
"""
