"""Messages for tests: strategies for every class, and one plain message of each type."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from wal.streams.msgstream import (
    CreateCollectionMsg,
    CreatePartitionMsg,
    DeleteMsg,
    DropCollectionMsg,
    DropPartitionMsg,
    InsertMsg,
    MsgType,
    OpaqueMsg,
    TimeTickMsg,
    TsMsg,
)

TYPES: Final = [named for named in MsgType if named is not MsgType.UNDEFINED]
CLASSES: Final[dict[MsgType, type[TsMsg]]] = {
    MsgType.INSERT: InsertMsg,
    MsgType.DELETE: DeleteMsg,
    MsgType.TIME_TICK: TimeTickMsg,
    MsgType.CREATE_COLLECTION: CreateCollectionMsg,
    MsgType.DROP_COLLECTION: DropCollectionMsg,
    MsgType.CREATE_PARTITION: CreatePartitionMsg,
    MsgType.DROP_PARTITION: DropPartitionMsg,
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
def inserts(draw: st.DrawFn) -> InsertMsg:
    count, fields = draw(row_fields())
    ids = draw(st.lists(i64, min_size=count, max_size=count))
    data = draw(st.lists(st.binary(max_size=8), min_size=count, max_size=count))
    return InsertMsg(row_ids=ids, row_data=data, **fields)


@st.composite
def deletes(draw: st.DrawFn) -> DeleteMsg:
    count, fields = draw(row_fields())
    return DeleteMsg(primary_keys=draw(st.lists(i64, min_size=count, max_size=count)), **fields)


def of_type(msg_type: MsgType) -> st.SearchStrategy[TsMsg]:
    """Returns the messages of this type."""
    match msg_type:
        case MsgType.INSERT:
            return inserts()
        case MsgType.DELETE:
            return deletes()
        case MsgType.TIME_TICK:
            return st.builds(lambda base, ts: TimeTickMsg(**{"timestamp": ts} | base), bases, u64)
        case MsgType.CREATE_COLLECTION:
            return st.builds(lambda base, *fields: CreateCollectionMsg(*fields, **base), bases, i64, names, st.binary(max_size=8))
        case MsgType.DROP_COLLECTION:
            return st.builds(lambda base, *fields: DropCollectionMsg(*fields, **base), bases, i64, names)
        case MsgType.CREATE_PARTITION:
            return st.builds(lambda base, *fields: CreatePartitionMsg(*fields, **base), bases, i64, names, i64, names)
        case MsgType.DROP_PARTITION:
            return st.builds(lambda base, *fields: DropPartitionMsg(*fields, **base), bases, i64, names, i64, names)
        case _:
            return st.builds(lambda base, body: OpaqueMsg(msg_type, body, **base), bases, st.binary(max_size=300))


messages = st.sampled_from(TYPES).flatmap(of_type)


def plain(msg_type: MsgType, timestamp: int = 7) -> TsMsg:
    """Returns a small message of this type."""
    match msg_type:
        case MsgType.INSERT:
            return InsertMsg([timestamp], [1], [b"row"])
        case MsgType.DELETE:
            return DeleteMsg([timestamp], [1])
        case MsgType.TIME_TICK:
            return TimeTickMsg(timestamp)
        case MsgType.CREATE_COLLECTION:
            return CreateCollectionMsg(1, "orders", b"schema", timestamp=timestamp)
        case MsgType.DROP_COLLECTION:
            return DropCollectionMsg(1, "orders", timestamp=timestamp)
        case MsgType.CREATE_PARTITION:
            return CreatePartitionMsg(1, "orders", 2, "eu", timestamp=timestamp)
        case MsgType.DROP_PARTITION:
            return DropPartitionMsg(1, "orders", 2, "eu", timestamp=timestamp)
        case _:
            return OpaqueMsg(msg_type, b"body", timestamp=timestamp)
