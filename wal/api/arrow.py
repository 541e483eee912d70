"""Arrow: rows as a `pyarrow.RecordBatch`, built column by column, without a Python object per row.

Packed columns become Arrow's columns here: Arrow's kernels compute order, ticks, times, names and types, and the payloads are copied into
its memory. pyarrow is imported when the first batch is built, never by importing the bridge.

Properties as an Arrow column of maps.

Stored maps (MessagePack, see `wal.message.properties`) become Arrow's maps here. The many messages of one producer mostly have few
different maps, so equal ones are decoded once. If most maps differ, for example because each holds an id, Arrow's kernels parse all of
them at once, one text after the other. Raises CorruptionError if a stored value is not a map of str to str.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain, combinations
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.errors import CorruptionError
from wal.message import MessageType
from wal.read.columns import COLUMNS, NO_TXN, Piece, RowColumns
from wal.read.frame_rows import counting
from wal.runtime.installation import Needed

if TYPE_CHECKING:
    import pyarrow as pa


def load_pyarrow() -> Any:
    """Returns the module pyarrow; raises an ImportError that names the package to install if it is missing."""
    with Needed("Arrow batches need", "arrow"):
        import pyarrow
        import pyarrow.compute
    return pyarrow


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Returns the schema of a batch with these columns, in this order; None for all of them."""
    return _schema(COLUMNS if columns is None else tuple(columns))


def record_batch(rows: RowColumns, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Returns a batch of these rows. It takes over their memory, so nothing may be added to them afterwards.

    `columns` names some of the gathered columns, in the wanted order; None means all of them. Raises CorruptionError if requested
    properties are damaged.
    """
    pa = load_pyarrow()
    names = tuple(rows.columns if columns is None else columns)
    making = _Making(pa, rows)
    return pa.RecordBatch.from_arrays([_COLUMNS[name](making) for name in names], schema=_schema(names))


class _Making:
    """A batch under construction, with the parts that several of its columns share."""

    def __init__(self, pa: Any, rows: RowColumns) -> None:
        self.pa = pa
        self.rows = rows
        self.picked = _picked(pa, rows)
        self._ticks: Any = None

    def of_rows(self, entries: Any) -> Any:
        """Returns the entries of the rows, in the rows' order."""
        return entries if self.picked is None else entries.take(self.picked)

    def fixed(self, kind: Any, width: int, pieces: Sequence[Piece]) -> Any:
        """Returns a column of entries of this width."""
        return self.of_rows(_pieces(self.pa, kind, self.rows.slots, width, pieces))

    @property
    def ticks(self) -> Any:
        if self._ticks is None:
            self._ticks = self.of_rows(_sum(self.pa, self.rows, self.rows.events))
        return self._ticks


def _picked(pa: Any, rows: RowColumns) -> Any:
    """Returns the slots that are rows, in the rows' order; None if all slots are rows and in order."""
    kept = None
    if rows.keep:
        kept = pa.compute.indices_nonzero(_pieces(pa, pa.uint8(), rows.slots, 1, rows.keep))
    if rows.in_order:
        return kept
    if kept is None and rows.order is not None and rows.order[0] == rows.slots:
        return rows.order[1]
    places = _sum(pa, rows, rows.indices)
    if kept is None:
        return pa.compute.array_sort_indices(places)
    return kept.take(pa.compute.array_sort_indices(places.take(kept)))


def _sum(pa: Any, rows: RowColumns, parts: Sequence[bytes | int]) -> Any:
    """Returns the ticks: the frames' first ticks plus these indices."""
    bases = rows.first_ticks
    if all(isinstance(part, int) for part in parts):
        bases = [first_tick - start for first_tick, start in zip(bases, accumulate(rows.tick_counts, initial=0), strict=False)]
        numbers = _counted(rows.slots)
    else:
        pieces = [counting(part) if isinstance(part, int) else part for part in parts]
        numbers = _pieces(pa, pa.uint32(), rows.slots, 4, pieces).cast(pa.int64())
    column = struct.pack(f"<{len(bases)}Q", *[base % _TICKS for base in bases])
    runs = pa.RunEndEncodedArray.from_arrays(
        pa.array(accumulate(rows.tick_counts), pa.int32()), pa.Array.from_buffers(pa.int64(), len(bases), [None, pa.py_buffer(column)])
    )
    return pa.compute.add(pa.compute.run_end_decode(runs), numbers)


def _counted(count: int) -> Any:
    """Returns the numbers below `count`. Batches share their memory."""
    numbers = _numbers()
    return numbers.slice(0, count) if count <= len(numbers) else steps(load_pyarrow(), 0, 1, count).cast(load_pyarrow().int64())


@cache
def _numbers() -> Any:
    pa = load_pyarrow()
    return steps(pa, 0, 1, _REPEATED_ROWS).cast(pa.int64())


# -- the columns


def _vchannels(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if len(rows.names) == 1:
        return _repeated(rows.names[0], rows.rows)
    codes = making.fixed(pa.int32(), 4, rows.vchannels)
    return _named(pa, codes, rows.names)


def _ids(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    ids = making.fixed(pa.binary(rows.id_width), rows.id_width, rows.ids).cast(pa.binary())
    if rows.without_id:
        missing = bytearray(rows.slots)
        for slot in rows.without_id:
            missing[slot] = 1
        mask = making.fixed(pa.uint8(), 1, [missing]).cast(pa.bool_())
        ids = pa.compute.if_else(mask, pa.scalar(None, pa.binary()), ids)
    return ids


def _ticks(making: _Making) -> Any:
    return making.ticks


def _types(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if not rows.types:
        return _repeated(MessageType.INSERT.name, rows.rows)
    coded = making.fixed(pa.uint16(), 2, rows.types).dictionary_encode()
    names = [_TYPE_NAMES.get(number, MessageType.UNKNOWN.name) for number in coded.dictionary.to_pylist()]
    return _named(pa, coded.indices, names)


def _txn_ids(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if not rows.txn_ids:
        return pa.nulls(rows.rows, pa.int64())
    ids = making.fixed(pa.int64(), 8, rows.txn_ids)
    return pa.compute.if_else(pa.compute.equal(ids, NO_TXN), pa.scalar(None, pa.int64()), ids)


def _payloads(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if rows.payload_offsets is not None and rows.payload_offsets[0] == rows.slots:
        buffers = [None, rows.payload_offsets[1], joined(pa, rows.payloads, rows.payload_bytes)]
        return making.of_rows(pa.Array.from_buffers(pa.binary(), rows.slots, buffers))
    return making.of_rows(_binary(pa, rows.slots, rows.payload_lens, rows.payloads, rows.payload_bytes))


def _properties(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if not rows.properties_lens:
        return properties_column(pa, None, rows.rows)
    stored = _binary(pa, rows.slots, rows.properties_lens, rows.properties, rows.properties_bytes)
    return properties_column(pa, stored, rows.rows, picked=making.picked)


def _times(making: _Making) -> Any:
    """Returns the ticks' milliseconds, as timestamps in microseconds."""
    pa = making.pa
    milliseconds = pa.compute.shift_right(making.ticks, pa.scalar(18, pa.int64()))
    return pa.compute.multiply(milliseconds, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


_COLUMNS: Final[dict[str, Callable[[_Making], Any]]] = dict(
    zip(COLUMNS, (_vchannels, _ids, _ticks, _types, _txn_ids, _payloads, _properties, _times), strict=True)
)


# -- buffers


def joined(pa: Any, pieces: Sequence[Piece], size: int) -> Any:
    """Returns the pieces in one buffer of Arrow's own memory, which Arrow reuses; a single buffer of it as it is."""
    if len(pieces) == 1 and isinstance(pieces[0], pa.Buffer):
        return pieces[0]
    buffer = pa.allocate_buffer(size)
    into, at = memoryview(buffer).cast("B"), 0
    for piece in pieces:
        into[at : at + len(piece)] = memoryview(piece).cast("B") if isinstance(piece, pa.Buffer) else piece
        at += len(piece)
    return buffer


def _pieces(pa: Any, kind: Any, count: int, width: int, pieces: Sequence[Piece]) -> Any:
    return pa.Array.from_buffers(kind, count, [None, joined(pa, pieces, count * width)])


def _binary(pa: Any, count: int, lengths: Sequence[Piece], pieces: Sequence[Any], size: int) -> Any:
    """Returns a column of byte strings, built from the joined bytes and the length of each string."""
    offsets = pa.compute.cumulative_sum(_pieces(pa, pa.int32(), count + 1, 4, [bytes(4), *lengths])).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, joined(pa, pieces, size)])


def _named(pa: Any, codes: Any, names: Sequence[str]) -> Any:
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).dictionary_decode()


def _repeated(text: str, count: int) -> Any:
    """Returns a column that repeats one text. Batches share its memory."""
    column = _columns(text)
    return column.slice(0, count) if count <= len(column) else load_pyarrow().repeat(column[0], count)


@lru_cache(maxsize=16)
def _columns(text: str) -> Any:
    pa = load_pyarrow()
    return pa.repeat(pa.scalar(text, pa.string()), _REPEATED_ROWS)


@cache
def _schema(columns: tuple[str, ...]) -> Any:
    pa = load_pyarrow()
    kinds = {
        "vchannel": pa.string(),
        "message_id": pa.binary(),
        "time_tick": pa.int64(),
        "message_type": pa.string(),
        "txn_id": pa.int64(),
        "payload": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "append_time": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, kinds[name]) for name in columns])


_REPEATED_ROWS: Final = 1 << 17
_TICKS: Final = 1 << 64
_TYPE_NAMES: Final = {int(kind): kind.name for kind in MessageType}


_TILED_MAPS: Final = 16384
"""As many as a batch for Spark has rows."""
_TILED_KEYS_MAX: Final = 256
"""The most characters of keys that are repeated for all these maps."""
PARSED_MIN: Final = 512
"""From this many different maps on, the kernels parse them; decoding fewer takes less time than calling the kernels."""


def properties_column(pa: Any, stored: Any, rows: int, *, parsed_min: int = PARSED_MIN, picked: Any = None) -> Any:
    """Returns the maps of `stored`, a binary array in which no bytes mean no properties. None means `rows` rows without properties.

    `picked` are the entries of `stored` that are rows, in the rows' order; None for all of them. The kernels parse the maps if at least
    `parsed_min` of them differ.
    """
    if stored is None:
        return _empty(pa, rows)
    coded = stored.dictionary_encode()
    different, codes = coded.dictionary, coded.indices
    if len(different) == len(stored):
        different, codes = stored if picked is None else stored.take(picked), None
    elif picked is not None:
        codes = codes.take(picked)  # numbers; putting the maps in order would copy all of them once more
    maps = _parsed(pa, different) if len(different) >= parsed_min else None
    if maps is None:
        maps = _decoded(pa, different)
    return maps if codes is None else _repeated_maps(pa, maps, codes)


def _repeated_maps(pa: Any, maps: Any, codes: Any) -> Any:
    """Returns the maps with these numbers. Maps with the same keys, which most producers set, share the memory of their keys."""
    pairs = maps.offsets[1].as_py() if len(maps) else 0
    if pairs and len(maps.keys) == pairs * len(maps) and max(len(maps), len(codes)) <= _TILED_MAPS:
        keys = tuple(maps.keys[:pairs].to_pylist())
        if sum(map(len, keys)) <= _TILED_KEYS_MAX and (tiled := _tiled(keys))[: len(maps.keys)].equals(maps.keys):
            values = pa.FixedSizeListArray.from_arrays(maps.items, pairs).take(codes).flatten()
            return pa.MapArray.from_arrays(_ends(pairs)[: len(codes) + 1], tiled[: pairs * len(codes)], values)
    return maps.take(codes)


@lru_cache(maxsize=4)
def _ends(pairs: int) -> Any:
    """Returns the offsets of `_TILED_MAPS` maps with this number of pairs."""
    return steps(load_pyarrow(), 0, pairs, _TILED_MAPS + 1)


@lru_cache(maxsize=4)
def _tiled(keys: tuple[str, ...]) -> Any:
    """Returns these keys again and again, for `_TILED_MAPS` maps. Batches share the memory."""
    return load_pyarrow().array(keys * _TILED_MAPS, load_pyarrow().string())


def _decoded(pa: Any, stored: Any) -> Any:
    """Returns the maps, decoded by MessagePack."""
    some = stored.to_pylist()
    filled = sum(map(bool, some))
    try:
        # With an array header in front, consecutive maps are an array of maps: one call decodes all.
        maps = _decoder.decode(b"\xdd" + filled.to_bytes(4, "big") + b"".join(some))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"stored properties cannot be decoded: {error}", expected="MessagePack maps of str to str") from error
    offsets, at, following = [0], 0, iter(maps)
    for one in some:
        if one:
            at += len(next(following))
        offsets.append(at)
    return _maps(pa, offsets, list(chain.from_iterable(maps)), list(chain.from_iterable(map(dict.values, maps))))


def _parsed(pa: Any, stored: Any) -> Any:
    """Returns the maps, parsed together by their number of pairs; None if one is large or damaged, which `_decoded` finds out."""
    pc = pa.compute
    heads = pc.binary_slice(stored, 0, 1)
    parts, places = [], []
    for head in heads.unique().to_pylist():
        alike = pc.indices_nonzero(pc.equal(heads, pa.scalar(head, pa.binary())))
        if not head:
            part = _empty(pa, len(alike))
        elif 0x81 <= head[0] <= 0x8F:
            part = _parsed_alike(pa, stored.take(alike), head[0] & 0x0F)
        else:
            return None
        if part is None:
            return None
        parts.append(part)
        places.append(alike)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pc.array_sort_indices(pa.concat_arrays(places)))


def _parsed_alike(pa: Any, stored: Any, pairs: int) -> Any:
    """Returns maps of `pairs` pairs each. The bounds of the texts are found text by text, for all maps at once."""
    pc, count = pa.compute, len(stored)
    _, offsets, data = stored.buffers()
    ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets], offset=stored.offset)
    octets = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
    # Scalars of 4 bytes, because plain ints would make the kernels compute with 8.
    one, two, kind, rest, fixed, long = (pa.scalar(number, pa.int32()) for number in (1, 2, 0xE0, 0x1F, 0xA0, 0xD9))
    at, ends = pc.add(ends[:-1], one), ends[1:]
    width = 4 * pairs
    bounds = bytearray(4 * width * count)
    cells = memoryview(bounds).cast("i")
    try:
        for text in range(2 * pairs):
            head = octets.take(at).cast(pa.int32())
            short = pc.equal(pc.bit_wise_and(head, kind), fixed)  # a fixstr of MessagePack, which has its length in the head
            start, length = pc.add(at, one), pc.bit_wise_and(head, rest)
            if not pc.all(short).as_py():
                if not pc.all(pc.or_(short, pc.equal(head, long))).as_py():
                    return None
                length = pc.if_else(short, length, octets.take(start).cast(pa.int32()))
                start = pc.if_else(short, start, pc.add(at, two))
            at = pc.add(start, length)
            cells[2 * text :: width] = _cells(start)
            cells[2 * text + 1 :: width] = _cells(at)
        if not pc.all(pc.equal(at, ends)).as_py():
            return None
        # The entries are a text, the head of the next one, a text, and so on; every other text is a key.
        entries = pa.Array.from_buffers(pa.binary(), width * count - 1, [None, pa.py_buffer(bounds), data])
        keys, values = (_texts(pa, entries, first, pairs * count) for first in (0, 2))
    except (IndexError, pa.ArrowInvalid):  # a text ends beyond its map, or is not UTF-8
        return None
    each = [keys.take(steps(pa, pair, pairs, count)) for pair in range(pairs)]
    if any(pc.any(pc.equal(key, other)).as_py() for key, other in combinations(each, 2)):
        return None  # a map holds a key twice, which only damage causes
    return pa.MapArray.from_arrays(steps(pa, 0, pairs, count + 1), keys, values)


def _texts(pa: Any, entries: Any, first: int, count: int) -> Any:
    return entries.take(steps(pa, first, 4, count)).cast(pa.string())


def steps(pa: Any, first: int, step: int, count: int) -> Any:
    """Returns `count` numbers that start at `first` and grow by `step`."""
    steps = pa.compute.cumulative_sum(pa.repeat(pa.scalar(step, pa.int32()), count))
    return pa.compute.add(steps, pa.scalar(first - step, pa.int32()))


def _cells(numbers: Any) -> memoryview:
    return memoryview(numbers.buffers()[1]).cast("B")[: 4 * len(numbers)].cast("i")


def _empty(pa: Any, count: int) -> Any:
    texts = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), texts, texts)


def _maps(pa: Any, offsets: list[int], keys: list[str], values: list[str]) -> Any:
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string()))


_decoder: Final = msgspec.msgpack.Decoder(list[dict[str, str]])
