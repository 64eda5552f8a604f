"""The requests of RocketMQ that are refused, with the reasons: for the remark of the answer, and for
docs/remoting.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Refusal(NamedTuple):
    """`why`: ends the sentence "not supported:"."""

    name: str
    why: str


_POP: Final = "POP is served by gRPC alone, clients of remoting pull"
_SLAVE: Final = "a replica group copies the log itself, and has no slaves of RocketMQ"
_CONTROLLER: Final = "a replica group elects its leader itself, without a controller"
_ACL_1: Final = "users and rules are those of ACL 2.0 (3001 to 3010)"
_FILTER: Final = "filter servers are gone since RocketMQ 4.3, consumers filter by tag or SQL92"
_TIMER: Final = "the times of delayed messages are records of the log"
_ROCKSDB: Final = "no part of the store is a RocksDB"
_COLD: Final = "reads of old messages are not throttled separately"
_REGISTRY: Final = "brokers of TroveMQ register by gRPC"
_NO_SENDER: Final = "no client and no tool sends it"

REFUSED: Final[Mapping[int, Refusal]] = {
    13: Refusal("QUERY_BROKER_OFFSET", _NO_SENDER),
    22: Refusal("GET_TOPIC_CONFIG_LIST", _NO_SENDER),
    23: Refusal("GET_TOPIC_NAME_LIST", _NO_SENDER),
    27: Refusal("TRIGGER_DELETE_FILES", "retention deletes segments"),
    43: Refusal("GET_ALL_CONSUMER_OFFSET", _SLAVE),
    45: Refusal("GET_ALL_DELAY_OFFSET", _SLAVE),
    47: Refusal("GET_CLIENT_CONFIG", _NO_SENDER),
    50: Refusal("UPDATE_AND_CREATE_ACL_CONFIG", _ACL_1),
    51: Refusal("DELETE_ACL_CONFIG", _ACL_1),
    52: Refusal("GET_BROKER_CLUSTER_ACL_INFO", _ACL_1),
    53: Refusal("UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", _ACL_1),
    60: Refusal("GET_TIMER_CHECK_POINT", _TIMER),
    61: Refusal("GET_TIMER_METRICS", _TIMER),
    103: Refusal("REGISTER_BROKER", _REGISTRY),
    104: Refusal("UNREGISTER_BROKER", _REGISTRY),
    217: Refusal("REGISTER_TOPIC_IN_NAMESRV", "routes have the topics of the brokers alone"),
    301: Refusal("REGISTER_FILTER_SERVER", _FILTER),
    302: Refusal("REGISTER_MESSAGE_FILTER_CLASS", _FILTER),
    308: Refusal("QUERY_CORRECTION_OFFSET", _NO_SENDER),
    322: Refusal("QUERY_DATA_VERSION", _REGISTRY),
    323: Refusal("RESUME_CHECK_HALF_MESSAGE", "a transaction that was given up is not opened again"),
    353: Refusal("UPDATE_AND_GET_GROUP_FORBIDDEN", "a rule of a user forbids to read a topic (createAcl)"),
    354: Refusal("CHECK_ROCKSDB_CQ_WRITE_PROGRESS", _ROCKSDB),
    355: Refusal("EXPORT_ROCKSDB_CONFIG_TO_JSON", _ROCKSDB),
    400: Refusal("QUERY_ASSIGNMENT", _POP + ": leave setClientRebalance(true), the default"),
    401: Refusal("SET_MESSAGE_REQUEST_MODE", _POP),
    513: Refusal("UPDATE_AND_CREATE_STATIC_TOPIC", "topics have no logical queues"),
    901: Refusal("GET_BROKER_MEMBER_GROUP", _SLAVE),
    902: Refusal("ADD_BROKER", "one process is one broker"),
    903: Refusal("REMOVE_BROKER", "one process is one broker"),
    904: Refusal("BROKER_HEARTBEAT", _REGISTRY),
    905: Refusal("NOTIFY_MIN_BROKER_ID_CHANGE", _SLAVE),
    906: Refusal("EXCHANGE_BROKER_HA_INFO", _SLAVE),
    908: Refusal("RESET_MASTER_FLUSH_OFFSET", _SLAVE),
    1001: Refusal("CONTROLLER_ALTER_SYNC_STATE_SET", _CONTROLLER),
    1002: Refusal("CONTROLLER_ELECT_MASTER", _CONTROLLER),
    1003: Refusal("CONTROLLER_REGISTER_BROKER", _CONTROLLER),
    1004: Refusal("CONTROLLER_GET_REPLICA_INFO", _CONTROLLER),
    1005: Refusal("CONTROLLER_GET_METADATA_INFO", _CONTROLLER),
    1006: Refusal("CONTROLLER_GET_SYNC_STATE_DATA", _CONTROLLER),
    1007: Refusal("GET_BROKER_EPOCH_CACHE", _CONTROLLER),
    1008: Refusal("NOTIFY_BROKER_ROLE_CHANGED", _CONTROLLER),
    1009: Refusal("UPDATE_CONTROLLER_CONFIG", _CONTROLLER),
    1010: Refusal("GET_CONTROLLER_CONFIG", _CONTROLLER),
    1011: Refusal("CLEAN_BROKER_DATA", _CONTROLLER),
    1012: Refusal("CONTROLLER_GET_NEXT_BROKER_ID", _CONTROLLER),
    1013: Refusal("CONTROLLER_APPLY_BROKER_ID", _CONTROLLER),
    2001: Refusal("UPDATE_COLD_DATA_FLOW_CTR_CONFIG", _COLD),
    2002: Refusal("REMOVE_COLD_DATA_FLOW_CTR_CONFIG", _COLD),
    2003: Refusal("GET_COLD_DATA_FLOW_CTR_INFO", _COLD),
    2004: Refusal("SET_COMMITLOG_READ_MODE", _COLD),
    200050: Refusal("POP_MESSAGE", _POP),
    200051: Refusal("ACK_MESSAGE", _POP),
    200052: Refusal("PEEK_MESSAGE", _POP),
    200053: Refusal("CHANGE_MESSAGE_INVISIBLETIME", _POP),
    200054: Refusal("NOTIFICATION", _POP),
    200055: Refusal("POLLING_INFO", _POP),
    200056: Refusal("POP_ROLLBACK", _POP),
    200151: Refusal("BATCH_ACK_MESSAGE", _POP),
}
_CODE_MASK: Final = 0xFFFF
_CUT: Final = {code & _CODE_MASK: refusal for code, refusal in REFUSED.items() if code > _CODE_MASK}
"""By the codes that arrive in a binary header, which has 16 bits for them."""


def refusal_text(code: int) -> str:
    """The remark: RocketMQ's words, with the blank, and the reason where there is one."""
    text = f" request type {code} not supported"
    found = REFUSED.get(code) or _CUT.get(code & _CODE_MASK)
    return text if found is None else f"{text}: {found.why}"
