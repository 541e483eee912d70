"""A reader of the wire form of delivered messages, from the description at the top of `wal/message/codec.py`."""

import base64
import math
from collections.abc import Sequence

from wal.message import (
    BroadcastHeader,
    ImmutableMessage,
    ImmutableTxnMessage,
    MessageID,
    MessageType,
    Origin,
    ResourceKey,
    TimeTickMessage,
    TxnContext,
    encode_properties,
    wire_pb2,
)


def message_read(message_id: MessageID | None, wire: wire_pb2.Message) -> ImmutableMessage:
    """Returns the message that a server has sent."""
    fields = {key: value for key, value in wire.properties.items() if key.startswith("_")}
    properties = {key: value for key, value in wire.properties.items() if not key.startswith("_")}
    assert (fields.pop("_v"), fields.pop("_lcs")) == ("2", "")
    number, tick, vchannel = int(fields.pop("_t")), int(fields.pop("_tt"), 36), fields.pop("_vc", "")
    context = header = None
    if "_tx" in fields:
        stored_context = wire_pb2.TxnContext.FromString(base64.b64decode(fields.pop("_tx")))
        milliseconds = stored_context.keepalive_milliseconds
        context = TxnContext(stored_context.txn_id, math.inf if milliseconds == -1 else milliseconds / 1000)
    if "_bh" in fields:
        stored_header = wire_pb2.BroadcastHeader.FromString(base64.b64decode(fields.pop("_bh")))
        keys = tuple(ResourceKey(key.domain, key.key, shared=key.shared) for key in stored_header.resource_keys)
        header = BroadcastHeader(stored_header.broadcast_id, tuple(stored_header.vchannels), keys, stored_header.ack_sync_up)
    assert fields.keys() <= {"_h"}
    assert ("_h" in fields) == (number == MessageType.COMMIT_TXN)
    origin, index = Origin("", 0, 0), 0
    if message_id is not None:
        origin = Origin(message_id.pchannel, message_id.incarnation, message_id.position, message_id.form)
        index = message_id.index
    stored = encode_properties(properties) if properties else b""
    if number == MessageType.TIME_TICK:
        return TimeTickMessage(origin, index, tick, vchannel, wire.payload, number, stored, context, header, message_id is not None)
    return ImmutableMessage(origin, index, tick, vchannel, wire.payload, number, stored, context, header)


def transaction_read(parts: Sequence[tuple[MessageID, wire_pb2.Message]]) -> ImmutableTxnMessage:
    """Returns the transaction whose begin, bodies and commit these are."""
    begin, *bodies, commit = [message_read(message_id, wire) for message_id, wire in parts]
    assert (begin._type, commit._type) == (MessageType.BEGIN_TXN, MessageType.COMMIT_TXN)
    for part in (begin, *bodies):
        assert (part._origin, part.time_tick, part.txn_context) == (commit._origin, commit.time_tick, commit.txn_context)
    return ImmutableTxnMessage(
        commit._origin,
        commit._index,
        commit.time_tick,
        commit.vchannel,
        commit.payload,
        int(MessageType.TXN),
        b"",
        commit.txn_context,
        commit.broadcast,
        messages=tuple(bodies),
        vchannels=tuple(wire_pb2.CommitTxnHeader.FromString(base64.b64decode(parts[-1][1].properties["_h"])).vchannels),
        _first_index=begin._index,
    )
