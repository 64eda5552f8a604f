"""The doors: gRPC services of both protocols, and the metrics. Generated protobuf types stop here.

`turns` and `pace` share the event loop among long requests.
"""
