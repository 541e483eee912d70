"""The drafts whose bytes are kept as `frame_v1_<case>.bin`, and the form of a decoded frame in `frame_v1.json`.

A case never changes once format version 1 is frozen; new ones may be added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from wal import frame
from wal.message import BroadcastHeader, MessageType, ResourceKey, encode_properties
from wal.write.schedule import Scheduled, encode_numbers

FOLDER: Final = Path(__file__).parent
TICK: Final = 1_700_000_000_000 << 18
A, B, C = ("orders", 1), ("stock", 2), ("zwölf", 3)

Case = tuple[frame.FrameDraft, dict[str, int]]


def plain() -> Case:
    draft = frame.FrameDraft()
    draft.append(A, [frame.Record(b"created")])
    return draft, {"sequence": 1, "first_tick": TICK}


def three_vchannels() -> Case:
    draft = frame.FrameDraft()
    draft.append(A, [frame.Record(b"created", properties=encode_properties({"customer": "7"})), frame.Record(b"")])
    draft.append(B, [frame.Record(b"reserved", int(MessageType.DELETE))])
    draft.append(C, [frame.Record("zwölf".encode(), int(MessageType.SCHEMA_CHANGE), 0, encode_properties({"ключ": "é"}))])
    producer = (9).to_bytes(8, "little") + b"till"
    draft.append(A, [frame.Record(b"paid", ext=frame.encode_ext({frame.ExtTag.IDEMPOTENCY_KEY: b"order-7"}))])
    draft.append(B, [frame.Record(b"shipped", ext=frame.encode_ext({frame.ExtTag.PRODUCER_KEY: producer, frame.ExtTag.TRACE: b"00-ab"}))])
    return draft, {"sequence": 2, "first_tick": TICK + 1}


def wide_transaction() -> Case:
    draft = frame.FrameDraft()
    draft.append(B, [frame.Record(b"before")])
    bodies = [(A, frame.Record(b"paid")), (B, frame.Record(b"taken", int(MessageType.DELETE))), (A, frame.Record(b"shipped"))]
    draft.commit(bodies, names=[A, B], txn_id=77, keepalive_ms=10_000)
    draft.append(A, [frame.Record(b"after")])
    return draft, {"sequence": 3, "first_tick": TICK + 7}


def empty_transaction() -> Case:
    draft = frame.FrameDraft()
    draft.commit([], names=[A], txn_id=78, keepalive_ms=10_000)
    return draft, {"sequence": 4, "first_tick": TICK + 13}


def broadcast() -> Case:
    draft = frame.FrameDraft()
    header = BroadcastHeader(5, ("orders", "stock", "zwölf"), (ResourceKey("collection", "orders"),))
    record = frame.Record(b"drop", int(MessageType.DROP_COLLECTION), 0, encode_properties({"by": "admin"}))
    draft.broadcast([A, B, C], record, header=header.to_bytes(["orders", "stock", "zwölf"]))
    draft.pchannel(frame.Record(b"switch", int(MessageType.ALTER_WAL)))
    return draft, {"sequence": 5, "first_tick": TICK + 14}


def broadcasts_beside_each_other() -> Case:
    """Two broadcasts, one with vchannels without a copy in this frame; a keyed message; a vchannel that also has its own run."""
    draft = frame.FrameDraft()
    draft.append(A, [frame.Record(b"before", ext=frame.encode_key("order-8"))], keyed=True)
    keys = (ResourceKey("collection", "orders"), ResourceKey("database", "shop", shared=True))
    wide = BroadcastHeader(6, ("far", "orders", "далеко", "zwölf", "last"), keys)
    draft.broadcast([A, C], frame.Record(b"alter"), header=wide.to_bytes(["orders", "zwölf"]))
    draft.broadcast([B], frame.Record(b"note"), header=BroadcastHeader(7, ("stock",), (), False).to_bytes(["stock"]))
    draft.append(A, [frame.Record(b"after")])
    return draft, {"sequence": 9, "first_tick": TICK + 50}


def abort() -> Case:
    draft = frame.FrameDraft()
    header = BroadcastHeader(6, ("far", "orders", "далеко", "zwölf", "last"), (ResourceKey("collection", "orders"),))
    record = frame.Record(b"vchannel far is gone", int(MessageType.ABORT_BROADCAST))
    draft.broadcast([A, C], record, header=header.to_bytes(["orders", "zwölf"]))
    return draft, {"sequence": 10, "first_tick": TICK + 60}


def term_start() -> Case:
    draft = frame.FrameDraft()
    draft.term_start(previous_term=3, previous_last_sequence=5)
    return draft, {"sequence": 0, "first_tick": TICK + 20, "promised_tick": TICK + 19}


def time_tick() -> Case:
    return frame.FrameDraft(), {"sequence": 6, "first_tick": TICK + 30, "promised_tick": TICK + 30}


def keyed() -> Case:
    draft = frame.FrameDraft()
    draft.append(A, [frame.Record(b"created", ext=frame.encode_key("order-7"))], keyed=True)
    draft.commit(
        [(A, frame.Record(b"paid")), (B, frame.Record(b"taken"))],
        names=[A, B],
        txn_id=79,
        keepalive_ms=10_000,
        key=frame.encode_key("till", sequence=9),
    )
    draft.append(C, [frame.Record(b"plain")])
    draft.producer_forgotten("zwölf")
    return draft, {"sequence": 8, "first_tick": TICK + 40}


def several_blocks() -> Case:
    draft = frame.FrameDraft()
    draft.append(A, [frame.Record(bytes([at]) * 6_000) for at in range(5)])
    draft.append(B, [frame.Record(b"large" * 8_000, properties=encode_properties({"a": "b"})), frame.Record(b"small")])
    draft.append(C, [frame.Record(b"\xff" * 16_384), frame.Record(b"last")])
    return draft, {"sequence": 7, "first_tick": TICK + 31}


def cursors() -> Case:
    draft = frame.FrameDraft()
    draft.commit_one(A, frame.Payloads([b"shipped"], [7]), txn_id=TICK - 1, keepalive_ms=10_000)
    draft.cursor("billing", lambda: b"an earlier state")
    draft.cursor("billing", lambda: bytes(range(8)))
    draft.cursor("audit", lambda: b"deleted")
    return draft, {"sequence": 12, "first_tick": TICK}


def scheduled() -> Case:
    """A delivery with its record, and another message that is scheduled."""
    draft = frame.FrameDraft()
    later = Scheduled(8, B, "stock-9", True, (TICK >> 18) + 60_000, int(MessageType.INSERT), encode_properties({"by": "7"}), b"reserve")
    draft.append(A, [frame.Record(b"remind", ext=frame.encode_key("order-7"))], keyed=True)
    draft.unscheduled(encode_numbers([Scheduled(5, A, "order-7", True, TICK >> 18, int(MessageType.INSERT), b"", b"remind")]))
    draft.scheduled(later.encoded())
    return draft, {"sequence": 13, "first_tick": TICK + 70}


CASES: Final[dict[str, Callable[[], Case]]] = {
    case.__name__: case
    for case in (
        plain,
        three_vchannels,
        wide_transaction,
        empty_transaction,
        broadcast,
        term_start,
        time_tick,
        several_blocks,
        keyed,
        broadcasts_beside_each_other,
        abort,
        cursors,
        scheduled,
    )
}


def compressed() -> Case:
    """Two blocks, of which the second does not shrink."""
    draft = frame.FrameDraft()
    noise = b"".join(hashlib.sha256(number.to_bytes(4, "little")).digest() for number in range(600))
    draft.append(A, [frame.Record(b'{"order": 7, "state": "created"}' * 600, properties=encode_properties({"customer": "7"}))])
    draft.append(B, [frame.Record(noise)])
    return draft, {"sequence": 5, "first_tick": TICK + 11}


COMPRESSED: Final[dict[str, Callable[[], Case]]] = {"compressed": compressed}
"""Cases with compressed blocks. Their bytes may be others with another release of zstd; those that are kept are read for ever."""
GOLDEN: Final = (*CASES, *COMPRESSED)


def encode_case(name: str) -> frame.EncodedFrame:
    """Returns the frame of this case as the encoder writes it now."""
    draft, header = (CASES | COMPRESSED)[name]()
    compressor = frame.Compressor() if name in COMPRESSED else None
    return frame.encode_frame(draft, incarnation=0xC0FFEE, term=4, **header, compressor=compressor, tables=None)


def path_of(name: str) -> Path:
    """Returns the file with the bytes of this case."""
    return FOLDER / f"frame_v1_{name}.bin"


def describe(data: bytes) -> dict[str, Any]:
    """Returns the decoded content of these bytes, in types of JSON."""
    head_bytes = frame.FrameView.decode(data, lambda start, end: b"").header.head_bytes
    view = frame.FrameView.decode(data, lambda start, end: data[head_bytes + start : head_bytes + end])
    term = view.term_start()
    header = {name: getattr(view.header, name) for name in view.header.__struct_fields__}
    return {
        "header": header,
        "term_start": None if term is None else [term.previous_term, term.previous_last_sequence],
        "runs": [_run(view, ordinal) for ordinal in range(len(view.runs))],
    }


def _run(view: frame.FrameView, ordinal: int) -> dict[str, Any]:
    run = view.runs[ordinal]
    described: dict[str, Any] = {
        "kind": frame.RunKind(run.kind).name,
        "name": run.name,
        "incarnation": run.incarnation,
        "body": [run.body_start, run.body_end],
    }
    if run.kind == frame.RunKind.COPY:
        return described | {"shared": run.shared, "index": run.index}
    columns = view.columns(run)
    names = frame.SystemRecord if run.kind == frame.RunKind.SYSTEM else MessageType
    described["indices"] = columns.indices
    described["payloads"] = [_bytes(payload) for payload in columns.payloads]
    described["types"] = columns.types and [names(number).name for number in columns.types]
    described["flags"] = columns.flags
    described["properties"] = columns.properties and [_bytes(stored) for stored in columns.properties]
    described["exts"] = columns.exts and [{tag.name: _bytes(value) for tag, value in frame.decode_ext(ext).items()} for ext in columns.exts]
    return described


def _bytes(data: bytes) -> str:
    """Returns short bytes in hexadecimal, long ones as length and SHA-256."""
    return data.hex() if len(data) <= 64 else f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
