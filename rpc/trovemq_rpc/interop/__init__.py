"""gRPC's own interoperability tests, as programs: `python -m trovemq_rpc.interop server|client`.

The cases are those of `doc/interop-test-descriptions.md` of gRPC. Their peers are the same programs of
grpc-go and grpc-java, and this one with `--transport grpcio`. Read `methods` (the service), `service`
(the server's side) and `cases` (the client's). Needs protobuf (the extra `interop`); nothing else of this
package imports it.
"""
