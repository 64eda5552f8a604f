"""The gRPC services of both protocols, and the metrics. Only this package uses generated protobuf types.

`turns` and `pace` share the event loop among long requests.
"""
