"""Crafted records with valid CRCs: an invalid map, cursor, checkpoint or metadata record is a CorruptionError.

Binary layouts get each field set to its bounds (`tests.storage.crafting`); MessagePack and JSON get each value replaced by values of every
type, and by numbers that no valid file has. A newer version is a FormatError.
"""

from __future__ import annotations

import binascii
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec
import pytest

from broadcaster import BroadcastState
from broadcaster.message import Content
from broadcaster.records import (
    abort_key,
    done_key,
    encode_abort,
    encode_acks,
    encode_done,
    encode_progress,
    encode_task,
    progress_key,
    read_records,
    task_key,
)
from tests.read.cursors.samples import cursor
from tests.storage.crafting import crafted, fields_of, sealed
from wal import Message, open_wal
from wal.channels.vchannel_map import VChannelMap
from wal.errors import ChannelFencedError, CorruptionError, FormatError, InvalidArgumentError, WALError
from wal.message import BroadcastHeader, ResourceKey
from wal.read.cursors.pins import Pin, decode_pin, encode_pin
from wal.storage.kv import SqliteKV
from wal.storage.pieces import PieceKind, encode_header, encode_piece
from wal.write.copies import CopiesPart, CopyTable, ListedBroadcast, encode_copies
from wal.write.idempotency.scopes import Kept, KeyRun, Scope
from wal.write.idempotency.state import KeptProducer, encode_state
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState

DEEP: Final = 100_000
WILD: Final[list[Any]] = [None, True, -1, 0, 1, 2**31, 2**32, 2**63 - 1, -(2**63), 0.5, "", "x" * 300, b"\xff", [], [1], {}]


def replaced(value: Any) -> Iterator[Any]:
    """Yields the value with each of its parts, itself included, in turn replaced, left out or doubled."""
    yield from WILD
    if isinstance(value, list | tuple):
        for at, item in enumerate(value):
            for other in replaced(item):
                yield [*value[:at], other, *value[at + 1 :]]
            yield [*value[:at], *value[at + 1 :]]
            yield [*value[: at + 1], *value[at:]]
    elif isinstance(value, dict):
        for key, item in value.items():
            for other in replaced(item):
                yield {**value, key: other}
            yield {other: item for other, item in value.items() if other != key}


def refused_or_read(read: Callable[[], object], what: object) -> None:
    try:
        read()
    except (CorruptionError, FormatError):
        pass
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__}: {error}, for {str(what)[:300]}") from error


def test_map_of_the_vchannels() -> None:
    here = Path("vchannels")
    whole = VChannelMap(7, 12, {"orders": 3, "é": 4, "x": 11}).encode()
    fields = [*fields_of("4sIQQII"), *((32 + at, "Q") for at in (0, 8, 16)), *((56 + at, "H") for at in (0, 2, 4))]
    texts = [(at, "B") for at in range(62, len(whole) - 4)]
    for what, changed in crafted(whole, fields + texts):
        refused_or_read(lambda changed=changed: VChannelMap.decode(changed, here), what)  # type: ignore[misc]
    for count, names_len in ((0xFFFFFFFF, 0), (0, 0xFFFFFFFF), (1 << 28, 1 << 31)):
        head = struct.pack("<4sIQQII", b"WALV", 1, 7, 12, count, names_len)
        with pytest.raises(CorruptionError, match="vchannels is damaged"):
            VChannelMap.decode(sealed(head + bytes(4)), here)
    for names in (b"\xff\xfe", b"aa"):  # invalid UTF-8; the same name twice
        body = struct.pack("<4sIQQIIQQHH", b"WALV", 1, 7, 12, 2, 2, 1, 2, 1, 1) + names
        with pytest.raises(CorruptionError, match="vchannels is damaged"):
            VChannelMap.decode(sealed(body + bytes(4)), here)
    for lengths in ((2, 1), (0xFFFF, 0xFFFF), (1, 0)):
        body = struct.pack("<4sIQQIIQQHH", b"WALV", 1, 7, 12, 2, 2, 1, 2, *lengths) + b"ab"
        with pytest.raises(CorruptionError, match="vchannels is damaged"):
            VChannelMap.decode(sealed(body + bytes(4)), here)


def test_cursor() -> None:
    whole = encode_pin(Pin(cursor(vchannels=("a", "b"))))
    head, body = whole[:16], whole[24:]

    def decode(body: bytes, head: bytes | None = None) -> None:
        head = head or whole[:12] + struct.pack("<I", len(body))
        decode_pin(head + struct.pack("<II", google_crc32c.extend(google_crc32c.value(head), body), 0) + body)

    decode(body)
    for at in (8, 12):
        for value in (0, 2, 0xFFFFFFFF):
            changed = head[:at] + struct.pack("<I", value) + head[at + 4 :]
            refused_or_read(lambda changed=changed: decode(body, changed), (at, value))  # type: ignore[misc]
    for content in replaced(msgspec.msgpack.decode(body)):
        refused_or_read(lambda content=content: decode(msgspec.msgpack.encode(content)), content)  # type: ignore[misc]
    for wild in (b"\x91" * DEEP, b"\xdf\xff\xff\xff\xff", b"\x8a\xa4name\xa1\xff", b""):
        with pytest.raises(CorruptionError):
            decode(wild)


def test_state_in_a_checkpoint() -> None:
    scope = Scope((("a", 1), ("b", 2)))
    keys = [
        KeyRun(scope, [f"key {number}", "x"], 4096 * number, 0, 10 + 2 * number, *[7, 8][number:])  # type: ignore[arg-type]
        for number in range(3)
    ]
    producers = [KeptProducer(scope, "p", 9, (8, 9), (Kept(1, 0, 5), Kept(2, 1, 6, 7, 8)))]
    header = BroadcastHeader(77, ("a", "b"), (ResourceKey("d", "k"),))
    copies = [ListedBroadcast(header, (CopiesPart(4096, 0, 10, (("a", 1), ("b", 2)), False),))]
    pieces = [*encode_state(keys, producers), *encode_copies(copies)]

    def restore(blob: bytes) -> None:
        table = IdempotencyTable(window_count=100, window_s=1e9, producers_max=100)
        RecoveryState(table, CopyTable()).restore(blob)

    restore(b"".join(pieces))
    for number, piece in enumerate(pieces):
        for content in replaced(msgspec.msgpack.decode(piece[4:])):
            data = msgspec.msgpack.encode(content)
            blob = b"".join([*pieces[:number], struct.pack("<I", len(data)) + data, *pieces[number + 1 :]])
            refused_or_read(lambda blob=blob: restore(blob), (number, content))  # type: ignore[misc]
        for length in (0, 1, len(piece) - 5, len(piece) - 3, 1 << 31, (1 << 32) - 1):
            changed = b"".join([*pieces[:number], struct.pack("<I", length) + piece[4:], *pieces[number + 1 :]])
            refused_or_read(lambda changed=changed: restore(changed), (number, length))  # type: ignore[misc]
    for kind in (1, 2, 3, 4):
        for wild in (b"\x91" * DEEP, b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
            data = b"\x99" + bytes([kind]) + wild
            with pytest.raises(CorruptionError):
                restore(b"".join([pieces[0], struct.pack("<I", len(data)) + data]))


def test_columns_of_different_lengths_are_no_shorter_state() -> None:
    scope = Scope((("a", 1),))
    pieces = list(encode_state([KeyRun(scope, [f"{number}"], 1, 2, 3 + number) for number in range(3)], []))
    content = msgspec.msgpack.decode(pieces[1][4:])
    content[3] = content[3][:2]
    data = msgspec.msgpack.encode(content)
    table = IdempotencyTable(window_count=100, window_s=1e9, producers_max=100)
    with pytest.raises(CorruptionError, match="3, 2, 3"):
        table.restore(pieces[0] + struct.pack("<I", len(data)) + data)


def test_keys_stored_singly_are_read() -> None:
    rows = [[0, 1, 0], ["x", "y", "z"], [1, 2, 3], [0, 1, 2], [10, 11, 12], [0, 0, 5], [0, 0, 6]]
    scopes = [[("a", 1)], [("a", 1), ("b", 2)]]
    blob = encode_header() + encode_piece(PieceKind.KEYS, [scopes, *rows])
    table = IdempotencyTable(window_count=100, window_s=1e9, producers_max=100)
    table.restore(blob)
    found = [table.find((("a", 1),), "x", now_ms=0), table.find((("a", 1), ("b", 2)), "y", now_ms=0)]
    assert found == [Kept(1, 0, 10), Kept(2, 1, 11)]
    assert table.find((("a", 1),), "z", now_ms=0) == Kept(3, 2, 12, 5, 6)
    assert table.find((("a", 1),), "y", now_ms=0) is None


def test_records_of_broadcasts() -> None:
    header = BroadcastHeader(77, ("a", "b"), (ResourceKey("d", "k"),))
    records = {
        task_key(77): encode_task(header, Content(b"x", 2, b""), {"p0": ["a"], "p1": ["b"]}),
        progress_key(77): encode_progress(3),
        abort_key(77): encode_abort("why"),
        done_key(78): encode_done(BroadcastState.DONE, 5),
        **encode_acks(77, 1, {0}),
    }
    read_records(list(records), list(records.values()))
    for key, value in records.items():
        content = msgspec.msgpack.decode(binascii.a2b_base64(value))
        for other in replaced(content):
            stored = binascii.b2a_base64(msgspec.msgpack.encode(other), newline=False).decode()
            refused_or_read(lambda key=key, stored=stored: read_records([key], [stored]), (key, other))  # type: ignore[misc]
        for wild in (b"\x91" * DEEP, b"\xdd\xff\xff\xff\xff", b"\x92\x01\xa1\xff", b""):
            stored = binascii.b2a_base64(wild, newline=False).decode()
            with pytest.raises(CorruptionError):
                read_records([key], [stored])
    for key in ("task/x", "task/", "acks/0000/-1", "acks/0000/x", f"acks/{77:016x}/{10**12}", "what/0000", "", "done/" + "f" * 40):
        for value in records.values():
            refused_or_read(lambda key=key, value=value: read_records([key], [value]), key)  # type: ignore[misc]


async def test_records_in_the_metadata(data_dir: Path, soak: int) -> None:
    """Tries each value of each record by an opening, an append and a read; a soak tries all of them, other runs a sample."""

    async def opened(place: Path) -> None:
        async with open_wal(place) as log:
            await log.raw_append(Message("orders", b"2"), idempotency_key="k")
            async for _ in log.read("orders", follow=False):
                pass

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with open_wal(data_dir, pchannels=2) as log:
        await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        await log.create_vchannel("other", pchannel="p1")
    kv = await SqliteKV.open(data_dir / "meta.sqlite3")
    stored = dict(zip(*await kv.load_with_prefix(""), strict=True))
    await kv.close()
    wild = ["", "x", "-1", "1e400", str(2**64), str(10**30), "[" * DEEP, '{"a": ', "null", "\x00", '"\\ud800"']
    for key, value in stored.items():
        others = list(wild)
        if value.startswith("{"):
            for content in replaced(json.loads(value)):
                try:
                    others.append(json.dumps(content))
                except TypeError:
                    continue  # bytes
        for other in others if soak > 1 else rng.sample(others, 10):
            kv = await SqliteKV.open(data_dir / "meta.sqlite3")
            await kv.multi_save_and_remove(stored | {key: other}, [])
            await kv.close()
            try:
                await opened(data_dir)
            except (CorruptionError, FormatError):
                pass
            except WALError as error:
                # A number that is not a tick, or a past term, has its own error.
                assert isinstance(error, InvalidArgumentError | ChannelFencedError), f"{key} = {other[:200]}: {error!r}"
            except BaseException as error:
                raise AssertionError(f"{type(error).__name__}: {error}, for {key} = {other[:200]}") from error
