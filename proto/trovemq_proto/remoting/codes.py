"""Codes of requests and responses, by RocketMQ's names (RequestCode, ResponseCode of release 5.4.0)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from trovemq_proto.errors import TroveError


class RequestCode(IntEnum):
    """The codes that the broker or the nameserver answers, or that the broker sends."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    LITE_PULL_MESSAGE = 361


class ResponseCode(IntEnum):
    """The codes of answers; 10 to 12 are of a message that is stored all the same."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUME_MSG_TIMEOUT = 207
    FLOW_CONTROL = 215


def request_name(code: int) -> str:
    """For logs and metrics: the name, or the number of an unknown one."""
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


_RESPONSES: Final = {
    "TOPIC_NOT_FOUND": ResponseCode.TOPIC_NOT_EXIST,
    "QUEUE_NOT_FOUND": ResponseCode.INVALID_PARAMETER,
    "GROUP_NOT_FOUND": ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    "TOPIC_ILLEGAL": ResponseCode.INVALID_PARAMETER,
    "GROUP_ILLEGAL": ResponseCode.INVALID_PARAMETER,
    "REQUEST_ILLEGAL": ResponseCode.INVALID_PARAMETER,
    "OPTION_ILLEGAL": ResponseCode.INVALID_PARAMETER,
    "RECALL_HANDLE_ILLEGAL": ResponseCode.INVALID_PARAMETER,
    "FILTER_ILLEGAL": ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    "OFFSET_NOT_FOUND": ResponseCode.QUERY_NOT_FOUND,
    "MESSAGE_SIZE_EXCEEDED": ResponseCode.MESSAGE_ILLEGAL,
    "PROPERTIES_SIZE_EXCEEDED": ResponseCode.MESSAGE_ILLEGAL,
    "BATCH_SIZE_EXCEEDED": ResponseCode.MESSAGE_ILLEGAL,
    "BATCH_ILLEGAL": ResponseCode.MESSAGE_ILLEGAL,
    "BODY_EMPTY": ResponseCode.MESSAGE_ILLEGAL,
    "KEY_ILLEGAL": ResponseCode.MESSAGE_ILLEGAL,
    "TAG_ILLEGAL": ResponseCode.MESSAGE_ILLEGAL,
    "PROPERTY_ILLEGAL": ResponseCode.MESSAGE_ILLEGAL,
    "UNIQUE_KEY_ILLEGAL": ResponseCode.MESSAGE_ILLEGAL,
    "MESSAGE_TYPE_CONFLICT": ResponseCode.MESSAGE_ILLEGAL,
    "MESSAGE_TYPE_UNSUPPORTED": ResponseCode.MESSAGE_ILLEGAL,
    "DELIVERY_TIME_ILLEGAL": ResponseCode.MESSAGE_ILLEGAL,
    "PERMISSION_MISSING": ResponseCode.NO_PERMISSION,
    "ACCESS_DENIED": ResponseCode.NO_PERMISSION,
    "AUTHENTICATION_FAILED": ResponseCode.NO_PERMISSION,
    "OS_PAGE_CACHE_BUSY": ResponseCode.SYSTEM_BUSY,
    "RESOURCES_SCARCE": ResponseCode.SYSTEM_BUSY,
    "LIMIT_EXCEEDED": ResponseCode.SYSTEM_BUSY,
    "DISK_FULL": ResponseCode.SERVICE_NOT_AVAILABLE,
    "STORE_FAILED": ResponseCode.SERVICE_NOT_AVAILABLE,
    "SERVICE_NOT_AVAILABLE": ResponseCode.SERVICE_NOT_AVAILABLE,
    "BROKER_DRAINED": ResponseCode.SERVICE_NOT_AVAILABLE,
    "TOPIC_CLOSED": ResponseCode.SERVICE_NOT_AVAILABLE,
    "NOT_LEADER": ResponseCode.SERVICE_NOT_AVAILABLE,
    "NOT_ENOUGH_REPLICAS": ResponseCode.SERVICE_NOT_AVAILABLE,
    "FLUSH_DISK_TIMEOUT": ResponseCode.FLUSH_DISK_TIMEOUT,
    "REPLICA_TIMEOUT": ResponseCode.FLUSH_SLAVE_TIMEOUT,
    "CONSUME_MSG_TIMEOUT": ResponseCode.CONSUME_MSG_TIMEOUT,
}
"""By an error's symbol; all others are SYSTEM_ERROR."""


def response_code(error: TroveError) -> ResponseCode:
    return _RESPONSES.get(error.symbol, ResponseCode.SYSTEM_ERROR)
