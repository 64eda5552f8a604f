"""The bytes of the frames: each frame comes back as it was, and no bytes do anything but a TroveError."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.replication.frames import (
    FRAME_BYTES_MAX,
    NODES_MAX,
    Data,
    Heartbeat,
    Hello,
    Identity,
    InSyncSet,
    LeaderFrame,
    Progress,
    Welcome,
)
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.v1 import replication_pb2 as pb
from trovemq_store.replica.epochs import ENTRIES_MAX, EPOCH_MAX, Epochs
from trovemq_store.replica.membership import (
    MEMBERS_MAX,
    NO_PLACE,
    PLACES,
    REMOVED_MAX,
    Member,
    Members,
)

NUMBERS = st.integers(0, wire.NUMBER_MAX)
OFFSETS = st.builds(PhysicalOffset, NUMBERS)
EPOCH = st.integers(0, EPOCH_MAX)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
IDENTITIES = st.builds(Identity, NAMES, NAMES, NUMBERS)
SETS = st.builds(InSyncSet, EPOCH, NUMBERS, st.frozensets(IDENTITIES, min_size=1, max_size=NODES_MAX))


@st.composite
def epoch_lists(draw: Any) -> Epochs:
    numbers = sorted(draw(st.sets(st.integers(1, EPOCH_MAX), max_size=8)))
    starts = sorted(draw(st.sets(NUMBERS, min_size=len(numbers), max_size=len(numbers))))
    return Epochs.of(list(zip(numbers, starts, strict=True)))


HELLOS = st.builds(
    Hello,
    NAMES,
    NAMES,
    IDENTITIES,
    EPOCH,
    epoch_lists(),
    OFFSETS,
    OFFSETS,
    OFFSETS,
    st.none() | SETS,
    NUMBERS,
    st.booleans(),
    st.just("") | NAMES,
)
PROGRESS = st.builds(Progress, EPOCH, OFFSETS, OFFSETS, NUMBERS, NUMBERS)
WELCOMES = st.builds(Welcome, EPOCH, epoch_lists(), OFFSETS, OFFSETS, OFFSETS, OFFSETS, st.booleans())
DATA = st.builds(
    Data,
    EPOCH,
    st.builds(PhysicalOffset, st.integers(0, 1 << 60)),
    OFFSETS,
    st.binary(min_size=1, max_size=300),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 1 << 60),
)
HEARTBEATS = st.builds(Heartbeat, EPOCH, OFFSETS, OFFSETS, NUMBERS, SETS, OFFSETS)
READERS = (
    wire.hello_of,
    wire.progress_of,
    wire.leader_frame_of,
    wire.promise_asked,
    wire.promised_of,
    wire.range_asked,
    wire.range_of,
    wire.status_asked,
    wire.members_change,
    lambda data: wire.stored_of("a", data),
)
LATER_FIELD = b"\xf8\x06\x01"
"""Number 111, which no message has."""


def hello(**fields: Any) -> bytes:
    """A good hello's bytes with other fields."""
    one = Identity("n1", "store", 0)
    made = Hello(
        "c", "g", one, 1, Epochs(), PhysicalOffset(0), PhysicalOffset(0), PhysicalOffset(0), None, 1024
    )
    request = pb.FollowRequest.FromString(wire.follower_bytes(made))
    for name, value in fields.items():
        if isinstance(value, (int, str, bytes)):
            setattr(request.hello, name, value)
        else:
            getattr(request.hello, name).CopyFrom(value)
    return request.SerializeToString()


@st.composite
def member_lists(draw: st.DrawFn) -> Members:
    text = st.text("abc.:-0", min_size=1, max_size=20)
    names = draw(st.lists(text, max_size=MEMBERS_MAX, unique=True))
    places = iter(draw(st.permutations(range(PLACES))))
    nodes = []
    for name in names:
        is_voter = draw(st.booleans())
        place = next(places) if is_voter else NO_PLACE
        nodes.append(Member(name, draw(text), draw(text), is_voter, place, draw(st.just("") | text)))
    return Members(
        version=draw(st.integers(0, wire.NUMBER_MAX)),
        nodes=tuple(nodes),
        newest=draw(st.sampled_from(["", *names])),
        removed=tuple(draw(st.lists(text, max_size=5) | st.just(["store"] * REMOVED_MAX))),
        last_place=draw(st.integers(-1, PLACES - 1)),
    )


def refused(read: Any, data: bytes) -> str:
    with pytest.raises(TroveError) as caught:
        read(data)
    assert caught.value.spec is errors.REPLICA_FRAME_ILLEGAL
    return caught.value.message


def error_of(read: Any, data: bytes) -> ErrorSpec | None:
    try:
        read(data)
    except TroveError as error:
        return error.spec
    return None


@given(HELLOS)
def test_a_hello_comes_back(frame: Hello) -> None:
    assert wire.hello_of(wire.follower_bytes(frame)) == frame


@given(PROGRESS)
def test_progress_comes_back(frame: Progress) -> None:
    assert wire.progress_of(wire.follower_bytes(frame)) == frame


@given(WELCOMES | DATA | HEARTBEATS)
def test_a_leaders_frame_comes_back(frame: Welcome | Data | Heartbeat) -> None:
    assert wire.leader_frame_of(wire.leader_bytes(frame)) == frame


@given(
    st.builds(Promised, IDENTITIES, EPOCH, epoch_lists(), OFFSETS, st.none() | SETS, member_lists()),
    st.builds(wire.RangeAsked, NAMES, NAMES, EPOCH, OFFSETS, NUMBERS, NAMES),
    st.builds(wire.PromiseAsked, NAMES, NAMES, st.integers(1, EPOCH_MAX)),
    st.builds(MembersChange, NAMES, NAMES, member_lists(), EPOCH),
    st.builds(wire.StatusAsked, st.just("") | NAMES, NAMES, NAMES),
    IDENTITIES,
)
def test_other_calls_come_back(
    promised: Promised,
    asked: wire.RangeAsked,
    promise: wire.PromiseAsked,
    change: MembersChange,
    status: wire.StatusAsked,
    stored: Identity,
) -> None:
    assert wire.members_change(wire.members_request(change)) == change
    assert wire.status_asked(wire.status_request(status)) == status
    assert wire.stored_of(stored.node, wire.stored_bytes(stored)) == stored
    assert wire.promised_of(wire.promised_bytes(promised)) == promised
    assert wire.range_asked(wire.range_request(asked)) == asked
    assert wire.promise_asked(wire.promise_request(promise)) == promise


@given(HELLOS | PROGRESS | WELCOMES | DATA | HEARTBEATS)
def test_fields_of_a_later_version_are_ignored(
    frame: Hello | Progress | Welcome | Data | Heartbeat,
) -> None:
    is_followers = isinstance(frame, Hello | Progress)
    data = wire.follower_bytes(frame) if isinstance(frame, Hello | Progress) else wire.leader_bytes(frame)
    message = (pb.FollowRequest if is_followers else pb.FollowReply).FromString(data)
    getattr(message, str(message.WhichOneof("frame"))).MergeFromString(LATER_FIELD)
    later = message.SerializeToString() + LATER_FIELD
    assert len(later) > len(data) + len(LATER_FIELD)
    read = wire.hello_of if isinstance(frame, Hello) else wire.progress_of
    assert (read if is_followers else wire.leader_frame_of)(later) == frame


@given(st.binary(max_size=400))
def test_random_bytes_end_in_an_error_or_a_frame(data: bytes) -> None:
    for read in READERS:
        assert error_of(read, data) in (None, errors.REPLICA_FRAME_ILLEGAL)


@given(HELLOS.map(wire.follower_bytes) | HEARTBEATS.map(wire.leader_bytes), st.data())
def test_changed_bytes_end_in_an_error_or_a_frame(data: bytes, draw: Any) -> None:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    for read in READERS:
        assert error_of(read, bytes(changed)) in (None, errors.REPLICA_FRAME_ILLEGAL)


@given(DATA)
def test_data_has_the_bytes_that_protobuf_writes(frame: Data) -> None:
    fields = {name: getattr(frame, name) for name in ("epoch", "offset", "commit", "crc", "blank", "data")}
    written = pb.FollowReply(data=pb.ReplicaData(**fields)).SerializeToString()
    assert wire.leader_bytes(frame) == written


@given(DATA.map(wire.leader_bytes), st.data())
def test_changed_data_is_read_as_protobuf_reads_it(data: bytes, draw: Any) -> None:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 4))):
        changed[draw.draw(st.integers(0, min(len(data), 60) - 1))] = draw.draw(st.integers(0, 255))
    changed += draw.draw(st.sampled_from([b"", b"\0", data, pb.FollowReply().SerializeToString()]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wire, "split_data", lambda _: None)
        expected = outcome(bytes(changed))
    assert outcome(bytes(changed)) == expected


def outcome(data: bytes) -> LeaderFrame | ErrorSpec:
    try:
        return wire.leader_frame_of(data)
    except TroveError as error:
        return error.spec


def test_the_longest_list_of_epochs_is_accepted() -> None:
    epochs = Epochs.of([(number + 1, number * 10) for number in range(ENTRIES_MAX)])
    data = hello(epochs=wire._epochs_to(epochs))
    assert wire.hello_of(data).epochs == epochs


@pytest.mark.parametrize(
    "entries",
    [
        [(1, 0), (1, 5)],
        [(2, 0), (1, 5)],
        [(1, 5), (2, 5)],
        [(0, 0)],
        [(1, -1)],
        [(number + 1, number) for number in range(ENTRIES_MAX + 1)],
    ],
)
def test_a_wrong_list_of_epochs_is_refused(entries: list[tuple[int, int]]) -> None:
    refused(wire.hello_of, hello(epochs=b"".join(wire._EPOCH.pack(*entry) for entry in entries)))


@pytest.mark.parametrize(
    "fields",
    [
        {"cluster": ""},
        {"group": "g" * 256},
        {"identity": pb.ReplicaIdentity(node="n" * 256, store_id="s")},
        {"identity": pb.ReplicaIdentity(node="n")},
        {"promised": EPOCH_MAX + 1},
        {"end": 1 << 63},
        {"epochs": b"12345678901"},
        {"in_sync": pb.ReplicaSet(epoch=1, version=1)},
        {
            "in_sync": pb.ReplicaSet(
                copies=[pb.ReplicaIdentity(node=f"n{n}", store_id="s") for n in range(NODES_MAX + 1)]
            )
        },
        {"in_sync": pb.ReplicaSet(copies=[pb.ReplicaIdentity(node="n", store_id="s")] * 2)},
    ],
)
def test_a_value_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    refused(wire.hello_of, hello(**fields))


def test_many_small_parts_are_refused_unread() -> None:
    many = pb.FollowRequest(
        hello=pb.ReplicaHello(in_sync=pb.ReplicaSet(copies=[pb.ReplicaIdentity()] * 20_000))
    )
    message = refused(wire.hello_of, many.SerializeToString())
    assert "fields" in message


def test_a_frame_of_the_other_kind_is_refused() -> None:
    progress = wire.follower_bytes(Progress(1, PhysicalOffset(0), PhysicalOffset(0), 0))
    refused(wire.hello_of, progress)
    refused(wire.progress_of, hello())
    refused(wire.leader_frame_of, b"")


def test_data_beyond_a_frame_is_one_record() -> None:
    size = FRAME_BYTES_MAX + 1
    record = size.to_bytes(4) + bytes(size - 4)
    frame = Data(1, PhysicalOffset(0), PhysicalOffset(0), record, zlib.crc32(record))
    assert wire.leader_frame_of(wire.leader_bytes(frame)) == frame
    other = (size - 1).to_bytes(4) + bytes(size - 4)
    refused(wire.leader_frame_of, pb.FollowReply(data=pb.ReplicaData(data=other)).SerializeToString())
    refused(wire.leader_frame_of, pb.FollowReply(data=pb.ReplicaData()).SerializeToString())


def test_a_frame_without_data_has_a_size_limit() -> None:
    refused(wire.hello_of, hello(epochs=bytes(wire.FRAME_SIZE_MAX)))


def test_a_list_of_members_beyond_its_limits_is_refused() -> None:
    promise = pb.ReplicaPromise(identity=pb.ReplicaIdentity(node="a", store_id="s"))
    promise.members.nodes.add(node="a", address="a:1", replication="a:2", voter=True, place=8)
    assert "place" in refused(wire.promised_of, promise.SerializeToString())
    promise.members.nodes[0].place = 7
    wire.promised_of(promise.SerializeToString())
    promise.members.nodes[0].store_id = "s" * 65
    assert "64" in refused(wire.promised_of, promise.SerializeToString())
    del promise.members.nodes[:]
    promise.members.removed.extend(["s"] * (REMOVED_MAX + 1))
    assert "removed stores" in refused(wire.promised_of, promise.SerializeToString())
