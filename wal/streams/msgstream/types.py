"""The types of stream messages, with the numbers that Milvus gives them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class MsgType(IntEnum):
    """The type of a stream message; the numbers are those of Milvus. Messages never have the type `UNDEFINED`."""

    UNDEFINED = 0
    CREATE_COLLECTION = 100
    DROP_COLLECTION = 101
    HAS_COLLECTION = 102
    DESCRIBE_COLLECTION = 103
    SHOW_COLLECTIONS = 104
    GET_SYSTEM_CONFIGS = 105
    LOAD_COLLECTION = 106
    RELEASE_COLLECTION = 107
    CREATE_ALIAS = 108
    DROP_ALIAS = 109
    ALTER_ALIAS = 110
    CREATE_PARTITION = 200
    DROP_PARTITION = 201
    HAS_PARTITION = 202
    DESCRIBE_PARTITION = 203
    SHOW_PARTITIONS = 204
    LOAD_PARTITIONS = 205
    RELEASE_PARTITIONS = 206
    SHOW_SEGMENTS = 250
    DESCRIBE_SEGMENT = 251
    LOAD_SEGMENTS = 252
    RELEASE_SEGMENTS = 253
    HANDOFF_SEGMENTS = 254
    LOAD_BALANCE_SEGMENTS = 255
    CREATE_INDEX = 300
    DESCRIBE_INDEX = 301
    DROP_INDEX = 302
    INSERT = 400
    DELETE = 401
    FLUSH = 402
    SEARCH = 500
    SEARCH_RESULT = 501
    GET_INDEX_STATE = 502
    GET_INDEX_BUILD_PROGRESS = 503
    GET_COLLECTION_STATISTICS = 504
    GET_PARTITION_STATISTICS = 505
    RETRIEVE = 506
    RETRIEVE_RESULT = 507
    WATCH_DM_CHANNELS = 508
    REMOVE_DM_CHANNELS = 509
    WATCH_QUERY_CHANNELS = 510
    REMOVE_QUERY_CHANNELS = 511
    SEGMENT_INFO = 600
    TIME_TICK = 1200
    QUERY_NODE_STATS = 1201
    LOAD_INDEX = 1202
    REQUEST_ID = 1203
    REQUEST_TSO = 1204
    ALLOCATE_SEGMENT = 1205
    SEGMENT_STATISTICS = 1206
    SEGMENT_FLUSH_DONE = 1207
    DATA_NODE_TT = 1208


class EarlierMsgType(IntEnum):
    """The numbers of early versions of Milvus, which old streams have.

    1201 means another type today, so all numbers of a stream are of one kind.
    """

    INSERT = 400
    DELETE = 401
    SEARCH = 500
    SEARCH_RESULT = 1000
    SEG_STATISTICS = 1100
    TIME_TICK = 1200
    TIME_SYNC = 1201

    @property
    def current(self) -> MsgType:
        """The same type with today's number: `TIME_SYNC` was a second kind of tick."""
        return _CURRENT.get(self) or MsgType(self)


_CURRENT: Final = {
    EarlierMsgType.SEARCH_RESULT: MsgType.SEARCH_RESULT,
    EarlierMsgType.SEG_STATISTICS: MsgType.SEGMENT_STATISTICS,
    EarlierMsgType.TIME_SYNC: MsgType.TIME_TICK,
}
