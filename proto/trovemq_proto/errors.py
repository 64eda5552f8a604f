"""One table of errors for every process and client: symbol, code, gRPC status, retriable, advice.

Codes are stable: a row may be added, never renumbered. Codes 1xx are the caller's input, 2xx something
that is not there, 3xx the store's state, 4xx the cluster, 5xx the service. `trovemq errors NAME` prints a row.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto.cluster_errors import *  # noqa: F403  the rows 4xx, as this module's own
from trovemq_proto.error_table import TABLE
from trovemq_proto.trove_error import UNREAD, DamagedError, ErrorSpec, TroveError

__all__ = ["UNREAD", "DamagedError", "ErrorSpec", "TroveError"]  # imported from here, beside the rows


_add = TABLE.add

# --- 1xx: the caller's input ------------------------------------------------------------------------
REQUEST_ILLEGAL = _add(
    "REQUEST_ILLEGAL", 100, "INVALID_ARGUMENT", False,
    "The request has a field that is missing or out of its range.",
    "Correct the value that the message names.",
)  # fmt: skip
TOPIC_ILLEGAL = _add(
    "TOPIC_ILLEGAL", 101, "INVALID_ARGUMENT", False,
    "The topic name is empty, longer than 127 characters, reserved, or has a character other than a to z, A to Z, 0 to 9, %, |, - and _, which RocketMQ's clients and brokers refuse.",
    "Choose a name of 1 to 127 of those characters that does not begin with %RETRY%, %DLQ% or rmq_sys_.",
)  # fmt: skip
GROUP_ILLEGAL = _add(
    "GROUP_ILLEGAL", 102, "INVALID_ARGUMENT", False,
    "The consumer group's name is empty, longer than 255 characters, or has an illegal character.",
    "Choose a name of letters, digits, %, |, - and _.",
)  # fmt: skip
KEY_ILLEGAL = _add(
    "KEY_ILLEGAL", 103, "INVALID_ARGUMENT", False,
    "A key is empty or has a space, 0x01 or 0x02.",
    "Keys are joined by one space on disk: give several keys as several arguments.",
)  # fmt: skip
TAG_ILLEGAL = _add(
    "TAG_ILLEGAL", 104, "INVALID_ARGUMENT", False,
    "The tag has a |, 0x01 or 0x02, or only white space.",
    "Choose another tag; one message has one tag.",
)  # fmt: skip
PROPERTY_ILLEGAL = _add(
    "PROPERTY_ILLEGAL", 105, "INVALID_ARGUMENT", False,
    "A property's name is empty or reserved, its value is empty, one of them has 0x01 or 0x02, or a priority is not 0 to 9.",
    "Rename the property (the reserved names are RocketMQ's own: KEYS, TAGS, UNIQ_KEY, …); give a priority from 0 to 9.",
)  # fmt: skip
MESSAGE_SIZE_EXCEEDED = _add(
    "MESSAGE_SIZE_EXCEEDED", 106, "INVALID_ARGUMENT", False,
    "The body, or the whole record, is larger than the broker takes.",
    "Send a smaller body, or raise maxMessageSize on the broker.",
)  # fmt: skip
PROPERTIES_SIZE_EXCEEDED = _add(
    "PROPERTIES_SIZE_EXCEEDED", 107, "INVALID_ARGUMENT", False,
    "Keys, tag and properties together take more than 32,767 bytes.",
    "Put large values into the body.",
)  # fmt: skip
BATCH_ILLEGAL = _add(
    "BATCH_ILLEGAL", 108, "INVALID_ARGUMENT", False,
    "A record of the batch has a wrong size, CRC, magic, topic, queue or host form; the batch was rejected whole.",
    "Encode the batch with trovemq_proto.records and for the route's present settings.",
)  # fmt: skip
BATCH_SIZE_EXCEEDED = _add(
    "BATCH_SIZE_EXCEEDED", 109, "INVALID_ARGUMENT", False,
    "The batch is larger than the broker takes, or than one commit-log segment holds.",
    "Split the batch; the route names the limit (batch_size_max).",
)  # fmt: skip
MESSAGE_ID_ILLEGAL = _add(
    "MESSAGE_ID_ILLEGAL", 110, "INVALID_ARGUMENT", False,
    "The text is not a message identifier.",
    "Give an offsetMsgId (32 or 56 hex digits), a message id, or TOPIC QUEUE OFFSET.",
)  # fmt: skip
CURSOR_ILLEGAL = _add(
    "CURSOR_ILLEGAL", 111, "INVALID_ARGUMENT", False,
    "The cursor is damaged or belongs to another query.",
    "Use a cursor only with the query that returned it, or start again without one.",
)  # fmt: skip
OFFSET_OUT_OF_RANGE = _add(
    "OFFSET_OUT_OF_RANGE", 112, "OUT_OF_RANGE", False,
    "The queue offset is below the queue's first message or above its end.",
    "Use an offset of the range that the reply names (min_offset, max_offset).",
)  # fmt: skip
MESSAGE_TYPE_UNSUPPORTED = _add(
    "MESSAGE_TYPE_UNSUPPORTED", 113, "INVALID_ARGUMENT", False,
    "The topic's message type is unknown.",
    "Use NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED or UNSPECIFIED.",
)  # fmt: skip
UNIQUE_KEY_ILLEGAL = _add(
    "UNIQUE_KEY_ILLEGAL", 114, "INVALID_ARGUMENT", False,
    "The message id is longer than 255 bytes or has a space, 0x01 or 0x02.",
    "Leave it out (one is made), or choose a shorter one without those characters.",
)  # fmt: skip
RECEIPT_HANDLE_ILLEGAL = _add(
    "RECEIPT_HANDLE_ILLEGAL", 115, "INVALID_ARGUMENT", False,
    "The receipt handle is unreadable, of another broker, was replaced, or its invisible time is over.",
    "Use the handle of the last receive or change, at the broker that delivered the message; it is delivered"
    " again when its time is over.",
)  # fmt: skip
INVISIBLE_DURATION_ILLEGAL = _add(
    "INVISIBLE_DURATION_ILLEGAL", 116, "INVALID_ARGUMENT", False,
    "The invisible duration is out of its range.",
    "Receive with 10 s to 12 h, change to 0 to 12 h.",
)  # fmt: skip
FILTER_ILLEGAL = _add(
    "FILTER_ILLEGAL", 117, "INVALID_ARGUMENT", False,
    "The filter expression cannot be read.",
    "Correct it at the position that the message names: `a || b` for tags, SQL-92 conditions on properties.",
)  # fmt: skip
DELIVERY_TIME_ILLEGAL = _add(
    "DELIVERY_TIME_ILLEGAL", 118, "INVALID_ARGUMENT", False,
    "The delivery time is further ahead than the broker takes.",
    "Choose an earlier time, or raise timerMaxDelaySec on the broker.",
)  # fmt: skip
MESSAGE_GROUP_ILLEGAL = _add(
    "MESSAGE_GROUP_ILLEGAL", 119, "INVALID_ARGUMENT", False,
    "The message group is blank, longer than 63 bytes, or has a control character.",
    "Choose another message group.",
)  # fmt: skip
TRANSACTION_ILLEGAL = _add(
    "TRANSACTION_ILLEGAL", 120, "INVALID_ARGUMENT", False,
    "No open transaction has this id: it is unknown, or was ended before.",
    "End a transaction once, with the id that its send returned.",
)  # fmt: skip
MESSAGE_TYPE_CONFLICT = _add(
    "MESSAGE_TYPE_CONFLICT", 121, "INVALID_ARGUMENT", False,
    "The message is of a kind that its topic does not take.",
    "Send it to a topic of its type (NORMAL, FIFO, DELAY, TRANSACTION) or of type MIXED.",
)  # fmt: skip
CLIENT_ID_MISSING = _add(
    "CLIENT_ID_MISSING", 122, "INVALID_ARGUMENT", False,
    "The call has no client id (metadata x-mq-client-id).",
    "Use a RocketMQ 5 client, or set the metadata.",
)  # fmt: skip
BODY_EMPTY = _add(
    "BODY_EMPTY", 123, "INVALID_ARGUMENT", False,
    "The message has no body.",
    "Send a body of at least one byte.",
)  # fmt: skip
POLLING_TIME_ILLEGAL = _add(
    "POLLING_TIME_ILLEGAL", 124, "INVALID_ARGUMENT", False,
    "The call's deadline is too short for a long poll.",
    "Give the call a deadline of more than five seconds, or a shorter polling time.",
)  # fmt: skip
CLIENT_PROPERTIES_ILLEGAL = _add(
    "CLIENT_PROPERTIES_ILLEGAL", 125, "INVALID_ARGUMENT", False,
    "The client's properties are too many, too large, or have an illegal name.",
    "Send at most 32, with names of letters, digits, _, . and -, and 4 KiB in all.",
)  # fmt: skip
RECALL_HANDLE_ILLEGAL = _add(
    "RECALL_HANDLE_ILLEGAL", 126, "INVALID_ARGUMENT", False,
    "The recall handle is unreadable, of another topic, or its message was delivered already.",
    "Recall a delayed message before its time, with the handle that its send returned.",
)  # fmt: skip
OPTION_ILLEGAL = _add(
    "OPTION_ILLEGAL", 127, "INVALID_ARGUMENT", False,
    "An option of a Spark data source, sink or job is unknown, or has a value that it cannot have.",
    "Correct it; the message names the options there are (docs/pipeline.md).",
)  # fmt: skip
TOPIC_OPTION_ILLEGAL = _add(
    "TOPIC_OPTION_ILLEGAL", 128, "INVALID_ARGUMENT", False,
    "An option of a topic is unknown, has a value that it cannot have, or contradicts another one.",
    "Correct it; the message names the option (trovemq topic create --help).",
)  # fmt: skip
TRANSACTION_SIZE_EXCEEDED = _add(
    "TRANSACTION_SIZE_EXCEEDED", 129, "INVALID_ARGUMENT", False,
    "The atomic transaction has more messages, acknowledgements or bytes than one may have.",
    "Send less in one transaction: 4,096 messages and a quarter of a segment (commit_log_file_size) at most.",
)  # fmt: skip
PROPERTY_NOT_INDEXED = _add(
    "PROPERTY_NOT_INDEXED", 130, "INVALID_ARGUMENT", False,
    "The topic does not declare that property as indexed, so that messages cannot be searched by it.",
    "Declare it: trovemq topic alter TOPIC --indexed-property NAME; messages that are there are found, too.",
)  # fmt: skip
TRANSACTION_DUPLICATE = _add(
    "TRANSACTION_DUPLICATE", 131, "INVALID_ARGUMENT", False,
    "A message of the atomic transaction has an id that its topic (option deduplicate) has stored already.",
    "Leave the message out, or give it another message id; nothing of the transaction was stored.",
)  # fmt: skip
PRODUCER_SEQUENCE_ILLEGAL = _add(
    "PRODUCER_SEQUENCE_ILLEGAL", 132, "INVALID_ARGUMENT", False,
    "A producer's id or its number for a message (TROVEMQ_PRODUCER, TROVEMQ_SEQUENCE) is missing or cannot be one.",
    "Let the producer number its messages (client.producer(topic, idempotent=True)), or correct the properties.",
)  # fmt: skip
PRODUCER_SEQUENCE_TOO_OLD = _add(
    "PRODUCER_SEQUENCE_TOO_OLD", 133, "INVALID_ARGUMENT", False,
    "The sequence is so far below its producer's highest that it is unknown whether it was stored.",
    "Look the message up by its message id or key; to send it all the same, send it with a new sequence.",
)  # fmt: skip
PRODUCER_SEQUENCE_CONFLICT = _add(
    "PRODUCER_SEQUENCE_CONFLICT", 134, "INVALID_ARGUMENT", False,
    "The producer has sent another message, with another message id, under this sequence.",
    "Give no two running producers one id; one that restarts reads the last number of its id (GetProducer).",
)  # fmt: skip

USER_ILLEGAL = _add(
    "USER_ILLEGAL", 135, "INVALID_ARGUMENT", False,
    "The user's access key, kind or secret has a form that it cannot have.",
    "Choose an access key of letters, digits, _, ., @ and -, and a secret of 8 to 256 characters without spaces.",
)  # fmt: skip
RULE_ILLEGAL = _add(
    "RULE_ILLEGAL", 136, "INVALID_ARGUMENT", False,
    "The rule's resource, actions or source addresses cannot be read.",
    "Write a resource as Topic:orders, Topic:orders*, Group:* or *, actions as Pub,Sub, sources as 10.0.0.0/8.",
)  # fmt: skip
TLS_OPTION_ILLEGAL = _add(
    "TLS_OPTION_ILLEGAL", 137, "INVALID_ARGUMENT", False,
    "A TLS option does not work: its file is missing, unreadable, expired or holds something else, or its key is another's.",
    "Correct the option that the message names; nothing was connected.",
)  # fmt: skip
CLIENT_CLOSED = _add(
    "CLIENT_CLOSED", 140, "INVALID_ARGUMENT", False,
    "The client, producer or subscription was closed by its program.",
    "Do it before closing, or connect again.",
)  # fmt: skip
EVENT_LOOP_ILLEGAL = _add(
    "EVENT_LOOP_ILLEGAL", 141, "INVALID_ARGUMENT", False,
    "The client was called outside of the event loop in which it was connected.",
    "Connect in the loop that calls it: one asyncio.run for the whole program, or a client for each loop. For threads and scripts: trovemq.sync.",
)  # fmt: skip

# --- 2xx: something is not there, or is there already -----------------------------------------------
TOPIC_NOT_FOUND = _add(
    "TOPIC_NOT_FOUND", 200, "NOT_FOUND", False,
    "The topic does not exist here.",
    "See the names: trovemq topic list. A new one: trovemq topic create NAME (sending makes none unless autoCreateTopicEnable is on).",
)  # fmt: skip
TOPIC_EXISTS = _add(
    "TOPIC_EXISTS", 201, "ALREADY_EXISTS", False,
    "The topic exists already.",
    "Use another name, or `trovemq topic alter`.",
)  # fmt: skip
QUEUE_NOT_FOUND = _add(
    "QUEUE_NOT_FOUND", 202, "NOT_FOUND", False,
    "The topic has no queue of that number here.",
    "Use a queue number below the topic's queue count (trovemq topic describe NAME).",
)  # fmt: skip
MESSAGE_NOT_FOUND = _add(
    "MESSAGE_NOT_FOUND", 203, "NOT_FOUND", False,
    "No visible message has that identifier.",
    "Check the identifier; the message may have expired, or never have been acknowledged.",
)  # fmt: skip
RECORD_DAMAGED = _add(
    "RECORD_DAMAGED", 204, "DATA_LOSS", False,
    "The record's bytes on disk are damaged.",
    "Read the records beside it; `trovemq store scrub` finds every damage.",
)  # fmt: skip

COMPRESSION_UNSUPPORTED = _add(
    "COMPRESSION_UNSUPPORTED", 205, "FAILED_PRECONDITION", False,
    "The message's body is compressed by a method that this installation cannot read.",
    "Install the Python package that the message names (lz4 or zstandard); the stored bytes are intact.",
)  # fmt: skip
GROUP_NOT_FOUND = _add(
    "GROUP_NOT_FOUND", 206, "NOT_FOUND", False,
    "The consumer group does not exist here.",
    "See the names: trovemq group list. A new one: trovemq group create NAME (its first receive makes one"
    " unless autoCreateSubscriptionGroup is off).",
)  # fmt: skip
GROUP_EXISTS = _add(
    "GROUP_EXISTS", 207, "ALREADY_EXISTS", False,
    "The consumer group exists already.",
    "Use another name, or `trovemq group alter`.",
)  # fmt: skip
CONSUMER_NOT_ONLINE = _add(
    "CONSUMER_NOT_ONLINE", 208, "NOT_FOUND", True,
    "No consumer of that client id is connected for the group.",
    "List the group's members: trovemq group members NAME.",
)  # fmt: skip
OFFSET_NOT_FOUND = _add(
    "OFFSET_NOT_FOUND", 209, "NOT_FOUND", False,
    "The group has no offset for this queue.",
    "Consume from the queue, or set an offset: trovemq group reset.",
)  # fmt: skip
CLIENT_UNKNOWN = _add(
    "CLIENT_UNKNOWN", 210, "NOT_FOUND", True,
    "The client has not sent its settings, or has been forgotten.",
    "Open the telemetry stream first, as official clients do.",
)  # fmt: skip
TRANSACTION_NOT_FOUND = _add(
    "TRANSACTION_NOT_FOUND", 211, "NOT_FOUND", False,
    "This broker knows no committed atomic transaction of that id, or does not remember it any more.",
    "It was not committed here, unless longer than remembered_ms ago: send it again, with a new id.",
)  # fmt: skip
MESSAGES_REMOVED_EARLY = _add(
    "MESSAGES_REMOVED_EARLY", 212, "DATA_LOSS", False,
    "Messages were removed before their time, to free the disk: the answer may lack some of them.",
    "Ask for times after the one that the message names; turn clean_forcibly_enable off, or give the store space.",
)  # fmt: skip

USER_NOT_FOUND = _add(
    "USER_NOT_FOUND", 213, "NOT_FOUND", False,
    "The user does not exist here.",
    "See the users: trovemq user list.",
)  # fmt: skip
USER_EXISTS = _add(
    "USER_EXISTS", 214, "ALREADY_EXISTS", False,
    "The user exists already.",
    "Choose another access key, or give the user a new secret: trovemq user rotate NAME.",
)  # fmt: skip
RULE_NOT_FOUND = _add(
    "RULE_NOT_FOUND", 215, "NOT_FOUND", False,
    "There is no rule of that number.",
    "See the rules: trovemq acl list.",
)  # fmt: skip
TOPIC_RECREATED = _add(
    "TOPIC_RECREATED", 216, "FAILED_PRECONDITION", False,
    "The topic was deleted and recreated since this position was read: its offsets are those of another topic.",
    "Read the new topic from its beginning, offset 0; the messages of the deleted one are gone.",
)  # fmt: skip
TOPIC_SETTINGS_DIFFER = _add(
    "TOPIC_SETTINGS_DIFFER", 217, "ALREADY_EXISTS", False,
    "The topic was created on some brokers, and exists on others with other settings.",
    "Make them the same: trovemq topic alter NAME --broker BROKER; queues can only become more.",
)  # fmt: skip
GROUP_SETTINGS_DIFFER = _add(
    "GROUP_SETTINGS_DIFFER", 218, "ALREADY_EXISTS", False,
    "The consumer group was created on some brokers, and exists on others with other settings.",
    "Give it the same settings everywhere: trovemq group alter NAME.",
)  # fmt: skip

# --- 3xx: the store's state -------------------------------------------------------------------------
INDEX_DISABLED = _add(
    "INDEX_DISABLED", 300, "FAILED_PRECONDITION", False,
    "An index that is needed is switched off (messageIndexEnable=false, tree_index_enable=false).",
    "Look up by offsetMsgId, queue offset or time, or switch the index on; it is then rebuilt from the log.",
)  # fmt: skip
CREATE_MAPPED_FILE_FAILED = _add(
    "CREATE_MAPPED_FILE_FAILED", 301, "UNAVAILABLE", True,
    "No new commit-log segment could be made; nothing was written.",
    "Check the broker's disk and its log, then send again.",
)  # fmt: skip
DISK_FULL = _add(
    "DISK_FULL", 302, "RESOURCE_EXHAUSTED", True,
    "The broker's disk has no space for the write; nothing was written. Reads continue.",
    "Free space on the broker's disk, then send again.",
)  # fmt: skip
FLUSH_DISK_TIMEOUT = _add(
    "FLUSH_DISK_TIMEOUT", 303, "DEADLINE_EXCEEDED", False,
    "The message is in the log, but its sync did not end within syncFlushTimeout.",
    "Treat it as sent with durability MEMORY; sending again makes a second message.",
)  # fmt: skip
STORE_FAILED = _add(
    "STORE_FAILED", 304, "UNAVAILABLE", False,
    "A sync or a write of the store failed; the broker no longer acknowledges anything and stops.",
    "Check the disk and restart the broker: it recovers everything that was acknowledged as on disk.",
)  # fmt: skip
STORE_LOCKED = _add(
    "STORE_LOCKED", 305, "FAILED_PRECONDITION", False,
    "Another broker (or a RocketMQ broker) has this store open.",
    "Stop the other process or choose another --store.",
)  # fmt: skip
STORE_SETTINGS_MISMATCH = _add(
    "STORE_SETTINGS_MISMATCH", 306, "FAILED_PRECONDITION", False,
    "The files of the store have other sizes than the settings say, or do not fit each other.",
    "Leave the sizes out of flags, files and environment: a broker reads them from the store.",
)  # fmt: skip
STORE_NEWER = _add(
    "STORE_NEWER", 307, "FAILED_PRECONDITION", False,
    "A file of the store was written by a newer TroveMQ, or depends on a store form that is not supported.",
    "Use that version or a newer one.",
)  # fmt: skip
SERVICE_NOT_AVAILABLE = _add(
    "SERVICE_NOT_AVAILABLE", 308, "UNAVAILABLE", True,
    "The broker is starting or stopping, or its store takes no writes.",
    "Try again, or send to another broker.",
)  # fmt: skip
PERMISSION_MISSING = _add(
    "PERMISSION_MISSING", 309, "PERMISSION_DENIED", False,
    "The topic has no queue that may be read, or written, as asked.",
    "Look at the topic's permission (trovemq topic describe NAME).",
)  # fmt: skip
ARCHIVE_ILLEGAL = _add(
    "ARCHIVE_ILLEGAL", 310, "FAILED_PRECONDITION", False,
    "The directory is not an archive of ours, its manifest is damaged, or a newer version wrote it.",
    "Name the directory that `trovemq-pipeline archive` wrote; a damaged one can be archived again.",
)  # fmt: skip
JOB_RUNNING = _add(
    "JOB_RUNNING", 311, "ABORTED", True,
    "Another run of this job writes to the same place.",
    "Wait for its end, or stop it.",
)  # fmt: skip
DATA_LOST = _add(
    "DATA_LOST", 312, "DATA_LOSS", False,
    "Messages that were to be read are gone: retention took them, their topic was deleted, or segments are missing.",
    "Start at a later offset, read a backup or an archive, or set failOnDataLoss=false to continue without.",
)  # fmt: skip

SEALING_KEY_MISMATCH = _add(
    "SEALING_KEY_MISMATCH", 313, "FAILED_PRECONDITION", False,
    "The users' secrets are sealed by another key than the key file has, or there is no key file; or two nodes of a"
    " replica group have different keys.",
    "Give the broker the key file that it had, or its leader's (sealing_key_file); it lies outside of the store and of"
    " backups.",
)  # fmt: skip

AUTHENTICATION_DISABLED = _add(
    "AUTHENTICATION_DISABLED", 314, "FAILED_PRECONDITION", False,
    "The server does not authenticate callers, so it has no users.",
    "Switch authentication_enable on; the first start makes a super user and writes its credentials to a file.",
)  # fmt: skip

STORE_OTHER_BROKER = _add(
    "STORE_OTHER_BROKER", 315, "FAILED_PRECONDITION", False,
    "The store is that of another broker, or of one in another cluster.",
    "Name the right --store, or --name and --cluster; for a broker that is renamed set renamed_from.",
)  # fmt: skip

STORE_DELETED = _add(
    "STORE_DELETED", 316, "UNAVAILABLE", False,
    "Files of the store were deleted while the broker had it open; it acknowledges nothing any more and stops.",
    "Remove the rest of the directory, and start again: with a backup, or empty as a new node of its group.",
)  # fmt: skip
GROUP_CLIENTS_DIFFER = _add(
    "GROUP_CLIENTS_DIFFER", 317, "FAILED_PRECONDITION", False,
    "Clients of the other kind consume as this group now: those of RocketMQ's remoting protocol, which keep their positions themselves, or those of gRPC, which have messages under leases.",
    "Stop them, or choose another group: the group is converted, without a loss, when the first client of the new kind comes after the last one of the old kind has left.",
)  # fmt: skip

# --- 5xx: the service -------------------------------------------------------------------------------
UNKNOWN_ERROR = _add(
    "UNKNOWN_ERROR", 500, "INTERNAL", False,
    "An error that the broker did not expect; its log has the details.",
    "Report it with the log line.",
)  # fmt: skip
LIMIT_EXCEEDED = _add(
    "LIMIT_EXCEEDED", 501, "RESOURCE_EXHAUSTED", True,
    "A limit of the broker is reached; the message names the limit, and its setting where it has one.",
    "Do as the message says; else send less at a time, or raise the setting.",
)  # fmt: skip
REQUEST_TIMEOUT = _add(
    "REQUEST_TIMEOUT", 502, "DEADLINE_EXCEEDED", True,
    "No answer came in time; a send may or may not have been stored.",
    "Try again; look a send up by its message id first.",
)  # fmt: skip
OS_PAGE_CACHE_BUSY = _add(
    "OS_PAGE_CACHE_BUSY", 503, "RESOURCE_EXHAUSTED", True,
    "More is waiting for the disk than the broker may hold in memory.",
    "Send again after a moment; the disk is the limit.",
)  # fmt: skip
CONSUME_MSG_TIMEOUT = _add(
    "CONSUME_MSG_TIMEOUT", 504, "DEADLINE_EXCEEDED", True,
    "The client did not answer the command in time.",
    "Try again with a longer time; some clients never answer such commands.",
)  # fmt: skip
NOT_IMPLEMENTED = _add(
    "NOT_IMPLEMENTED", 505, "UNIMPLEMENTED", False,
    "The broker, or the client that was asked, does not do this.",
    "See the documentation for the calls that are served.",
)  # fmt: skip
TRANSACTION_TIMED_OUT = _add(
    "TRANSACTION_TIMED_OUT", 506, "DEADLINE_EXCEEDED", False,
    "The atomic transaction was not ended within its time; nothing of it was stored.",
    "Begin it again, with a longer time-out if it needs one (atomic_timeout_max_ms is the longest).",
)  # fmt: skip

AUTHENTICATION_FAILED = _add(
    "AUTHENTICATION_FAILED", 507, "UNAUTHENTICATED", False,
    "The call has no credentials, or they are not valid here.",
    "Give access key and secret: arguments, TROVEMQ_ACCESS_KEY and TROVEMQ_SECRET_KEY, or a credentials file.",
)  # fmt: skip
ACCESS_DENIED = _add(
    "ACCESS_DENIED", 508, "PERMISSION_DENIED", False,
    "The user may not do this.",
    "See why: trovemq acl test USER ACTION RESOURCE; a super user changes it: trovemq acl allow.",
)  # fmt: skip
RESOURCES_SCARCE = _add(
    "RESOURCES_SCARCE", 509, "RESOURCE_EXHAUSTED", True,
    "The broker had no descriptor, map or memory free to read or open a file; nothing is damaged.",
    "Try again; if it stays, close idle connections, or raise the broker's limit of open files (LimitNOFILE, ulimit -n)"
    " or vm.max_map_count.",
)  # fmt: skip

ERRORS: Final[tuple[ErrorSpec, ...]] = tuple(sorted(TABLE.by_symbol.values(), key=lambda one: one.code))


def by_symbol(symbol: str) -> ErrorSpec:
    """The row of a symbol (any case). Raises KeyError."""
    return TABLE.by_symbol[symbol.upper()]


def by_code(code: int) -> ErrorSpec:
    """The row of a code. Raises KeyError."""
    return TABLE.by_code[code]


def from_wire(symbol: str, message: str, fields: dict[str, str] | None = None) -> TroveError:
    """The error that a peer sent; a symbol that this version does not know becomes UNKNOWN_ERROR."""
    spec = TABLE.by_symbol.get(symbol)
    if spec is None:
        return TroveError(UNKNOWN_ERROR, f"{symbol}: {message}", **(fields or {}))
    return TroveError(spec, message, **(fields or {}))
