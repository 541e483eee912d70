"""Messages for tests: strategies for every class, and one plain message of each type."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from wal.streams import msgstream

TYPES: Final = [named for named in msgstream.MsgType if named is not msgstream.MsgType.UNDEFINED]
CLASSES: Final[dict[msgstream.MsgType, type[msgstream.TsMsg]]] = {
    msgstream.MsgType.INSERT: msgstream.InsertMsg,
    msgstream.MsgType.DELETE: msgstream.DeleteMsg,
    msgstream.MsgType.TIME_TICK: msgstream.TimeTickMsg,
    msgstream.MsgType.CREATE_COLLECTION: msgstream.CreateCollectionMsg,
    msgstream.MsgType.DROP_COLLECTION: msgstream.DropCollectionMsg,
    msgstream.MsgType.CREATE_PARTITION: msgstream.CreatePartitionMsg,
    msgstream.MsgType.DROP_PARTITION: msgstream.DropPartitionMsg,
}
"""The types with a class of their own; the others are OpaqueMsg."""

i64 = st.integers(-(2**63), 2**63 - 1)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = text.filter(bool)
bases = st.fixed_dictionaries(
    {},
    optional={
        "id": i64,
        "timestamp": u64,
        "source_id": i64,
        "target_id": i64,
        "hash_keys": st.lists(u32, min_size=1, max_size=3),
        "trace_ctx": st.dictionaries(text, text | st.text("ab", min_size=130, max_size=140), max_size=3),
    },
)


@st.composite
def row_fields(draw: st.DrawFn, rows_max: int = 6) -> tuple[int, dict[str, Any]]:
    count = draw(st.integers(1, rows_max))
    base = draw(bases)
    if base.pop("hash_keys", None):
        base["hash_keys"] = draw(st.lists(u32, min_size=count, max_size=count))
    fields = {"timestamps": draw(st.lists(u64, min_size=count, max_size=count)), "collection_id": draw(i64), "partition_id": draw(i64)}
    return count, base | fields


@st.composite
def inserts(draw: st.DrawFn) -> msgstream.InsertMsg:
    count, fields = draw(row_fields())
    ids = draw(st.lists(i64, min_size=count, max_size=count))
    data = draw(st.lists(st.binary(max_size=8), min_size=count, max_size=count))
    return msgstream.InsertMsg(row_ids=ids, row_data=data, **fields)


@st.composite
def deletes(draw: st.DrawFn) -> msgstream.DeleteMsg:
    count, fields = draw(row_fields())
    return msgstream.DeleteMsg(primary_keys=draw(st.lists(i64, min_size=count, max_size=count)), **fields)


def of_type(msg_type: msgstream.MsgType) -> st.SearchStrategy[msgstream.TsMsg]:
    """Returns the messages of this type."""
    match msg_type:
        case msgstream.MsgType.INSERT:
            return inserts()
        case msgstream.MsgType.DELETE:
            return deletes()
        case msgstream.MsgType.TIME_TICK:
            return st.builds(lambda base, ts: msgstream.TimeTickMsg(**{"timestamp": ts} | base), bases, u64)
        case msgstream.MsgType.CREATE_COLLECTION:
            return st.builds(lambda base, *fields: msgstream.CreateCollectionMsg(*fields, **base), bases, i64, names, st.binary(max_size=8))
        case msgstream.MsgType.DROP_COLLECTION:
            return st.builds(lambda base, *fields: msgstream.DropCollectionMsg(*fields, **base), bases, i64, names)
        case msgstream.MsgType.CREATE_PARTITION:
            return st.builds(lambda base, *fields: msgstream.CreatePartitionMsg(*fields, **base), bases, i64, names, i64, names)
        case msgstream.MsgType.DROP_PARTITION:
            return st.builds(lambda base, *fields: msgstream.DropPartitionMsg(*fields, **base), bases, i64, names, i64, names)
        case _:
            return st.builds(lambda base, body: msgstream.OpaqueMsg(msg_type, body, **base), bases, st.binary(max_size=300))


messages = st.sampled_from(TYPES).flatmap(of_type)


def plain(msg_type: msgstream.MsgType, timestamp: int = 7) -> msgstream.TsMsg:
    """Returns a small message of this type."""
    match msg_type:
        case msgstream.MsgType.INSERT:
            return msgstream.InsertMsg([timestamp], [1], [b"row"])
        case msgstream.MsgType.DELETE:
            return msgstream.DeleteMsg([timestamp], [1])
        case msgstream.MsgType.TIME_TICK:
            return msgstream.TimeTickMsg(timestamp)
        case msgstream.MsgType.CREATE_COLLECTION:
            return msgstream.CreateCollectionMsg(1, "orders", b"schema", timestamp=timestamp)
        case msgstream.MsgType.DROP_COLLECTION:
            return msgstream.DropCollectionMsg(1, "orders", timestamp=timestamp)
        case msgstream.MsgType.CREATE_PARTITION:
            return msgstream.CreatePartitionMsg(1, "orders", 2, "eu", timestamp=timestamp)
        case msgstream.MsgType.DROP_PARTITION:
            return msgstream.DropPartitionMsg(1, "orders", 2, "eu", timestamp=timestamp)
        case _:
            return msgstream.OpaqueMsg(msg_type, b"body", timestamp=timestamp)
