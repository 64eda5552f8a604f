"""The edge of the SDK: only this package uses generated protobuf types and gRPC calls.

convert.py  protobuf messages <-> the SDK's own values
streams.py  the same for Append and Fetch, in columns
frames.py   Append and Fetch frames, packed and parsed by hand to avoid copies of the records
failures.py gRPC errors -> TroveError
connection.py  one channel to one server, with a method for each call
"""
