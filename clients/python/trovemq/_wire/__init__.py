"""The SDK's edge for our own protocol: its generated protobuf types, and all gRPC calls, stop in this
package.

convert.py  protobuf messages <-> the SDK's own values
streams.py  the same for Append and Fetch, in columns
frames.py   Append and Fetch frames, packed and parsed by hand to avoid copies of the records
failures.py gRPC errors -> TroveError
connection.py  one channel to one server, with a method for each call
"""
