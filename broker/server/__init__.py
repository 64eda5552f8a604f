"""The gRPC services of both protocols, and the metrics. Generated protobuf types are used here and in
`cluster`, not in the engine's packages.

`turns` and `pace` share the event loop among long requests.
"""
