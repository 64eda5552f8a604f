"""The SDK's edge: generated protobuf types and gRPC calls end in this package.

convert.py  protobuf messages <-> the SDK's own values
streams.py  the same for Append and Fetch, in columns
frames.py   Append and Fetch frames, packed and parsed by hand where a copy of the records would cost
failures.py gRPC errors -> TroveError
connection.py  one channel to one server, a method a call
"""
