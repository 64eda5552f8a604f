"""Services registered from their descriptors: the kind of each handler, its reader and its writer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from trovemq_daemon.grpc_services import add_service, method_handler, python_name, service_handlers
from trovemq_daemon.request_bounds import PARTS_MAX
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import admin_pb2, message_pb2, query_pb2, store_pb2, transaction_pb2

STORE = store_pb2.DESCRIPTOR.services_by_name["StoreService"]
TRANSACTIONS = transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"]
METHODS = {
    "unary_unary": admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name["CreateTopic"],
    "unary_stream": query_pb2.DESCRIPTOR.services_by_name["QueryService"].methods_by_name["QueryByKey"],
    "stream_unary": TRANSACTIONS.methods_by_name["Transact"],
    "stream_stream": message_pb2.DESCRIPTOR.services_by_name["MessageService"].methods_by_name["Append"],
}


class Stored:
    """A servicer of StoreService."""

    async def scrub(self, _request: Any, _context: Any) -> AsyncIterator[store_pb2.ScrubReply]:
        yield store_pb2.ScrubReply()

    async def backup(self, _request: Any, _context: Any) -> AsyncIterator[store_pb2.BackupReply]:
        yield store_pb2.BackupReply()


@pytest.mark.parametrize("kind", METHODS)
def test_a_handler_streams_on_the_sides_that_its_descriptor_says(kind: str) -> None:
    async def behaviour(_request: Any, _context: Any) -> None:
        raise AssertionError

    handler = method_handler(METHODS[kind], behaviour)
    streams = (handler.request_streaming, handler.response_streaming)
    assert streams == tuple(side == "stream" for side in kind.split("_"))
    kinds = {name: getattr(handler, name) for name in METHODS}
    assert {name for name, found in kinds.items() if found is not None} == {kind}
    assert kinds[kind] is behaviour


def test_requests_are_read_within_their_bounds_and_replies_written_once() -> None:
    handler: Any = service_handlers(STORE, Stored())["Backup"]
    request = store_pb2.BackupRequest(directory="/backups")
    assert handler.request_deserializer(request.SerializeToString()) == request
    reply = store_pb2.BackupReply(done=True)
    assert handler.response_serializer(reply) == reply.SerializeToString()
    assert handler.response_serializer(b"serialised already") == b"serialised already"


def test_a_request_of_too_many_parts_is_refused_by_each_reader() -> None:
    handler: Any = method_handler(METHODS["unary_unary"], Stored().scrub)
    hostile = admin_pb2.CreateTopicRequest(options={f"{n:06}": "" for n in range(PARTS_MAX + 1)})
    with pytest.raises(TroveError) as refused:
        handler.request_deserializer(hostile.SerializeToString())
    assert refused.value.spec is errors.LIMIT_EXCEEDED


def test_an_rpc_may_have_a_reader_of_its_own() -> None:
    handlers: Any = service_handlers(STORE, Stored(), {"Scrub": bytes})
    assert handlers["Scrub"].request_deserializer is bytes
    assert handlers["Backup"].request_deserializer is not bytes


class WithoutBackup:
    scrub = Stored.scrub


class WithPlainBackup(WithoutBackup):
    def backup(self, _request: Any, _context: Any) -> store_pb2.BackupReply:
        return store_pb2.BackupReply()


@pytest.mark.parametrize("servicer", [WithoutBackup(), WithPlainBackup()], ids=lambda one: type(one).__name__)
def test_a_service_that_lacks_an_rpc_is_refused_before_the_server_starts(servicer: object) -> None:
    class Server:
        def add_registered_method_handlers(self, _service: str, _handlers: object) -> None:
            raise AssertionError("a part of a service was added")

    server: Any = Server()
    with pytest.raises(TypeError, match=r"`backup` for trovemq\.v1\.StoreService\.Backup"):
        add_service(server, STORE, servicer)


def test_a_servicers_methods_are_named_in_snake_case() -> None:
    names = {
        "Send": "send",
        "QueryByKey": "query_by_key",
        "PrintThreadStackTrace": "print_thread_stack_trace",
    }
    assert {name: python_name(name) for name in names} == names
