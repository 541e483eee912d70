"""Properties as an Arrow column of maps.

Stored maps (MessagePack, see `wal.message.properties`) become Arrow's maps here. The many messages of one producer mostly have few
different maps, so equal ones are decoded once. If most maps differ, for example because each holds an id, Arrow's kernels parse all of
them at once, one text after the other. Raises CorruptionError if a stored value is no map of str to str.
"""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any, Final

import msgspec

from wal.errors import CorruptionError

__all__ = ["properties_column"]

PARSED_MIN: Final = 512
"""From this many different maps on, the kernels parse them; decoding fewer takes less time than calling the kernels."""


def properties_column(pa: Any, stored: Any, rows: int, *, parsed_min: int = PARSED_MIN) -> Any:
    """Returns the maps of `stored`, a binary array in which no bytes mean no properties. None means `rows` rows without properties.

    The kernels parse the maps if at least `parsed_min` of them differ.
    """
    if stored is None:
        return _empty(pa, rows)
    coded = stored.dictionary_encode()
    different = coded.dictionary
    maps = _parsed(pa, different) if len(different) >= parsed_min else None
    if maps is None:
        maps = _decoded(pa, different)
    return maps if len(different) == len(stored) else maps.take(coded.indices)


def _decoded(pa: Any, stored: Any) -> Any:
    """Returns the maps, decoded by MessagePack."""
    some = stored.to_pylist()
    filled = sum(map(bool, some))
    try:
        # With an array header in front, consecutive maps are an array of maps: one call decodes all.
        maps = _decoder.decode(b"\xdd" + filled.to_bytes(4, "big") + b"".join(some))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"stored properties cannot be decoded: {error}", expected="MessagePack maps of str to str"
        ) from error
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
            short = pc.equal(
                pc.bit_wise_and(head, kind), fixed
            )  # a fixstr of MessagePack, which has its length in the head
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
    each = [keys.take(_steps(pa, pair, pairs, count)) for pair in range(pairs)]
    if any(pc.any(pc.equal(key, other)).as_py() for key, other in combinations(each, 2)):
        return None  # a map holds a key twice, which only damage causes
    return pa.MapArray.from_arrays(_steps(pa, 0, pairs, count + 1), keys, values)


def _texts(pa: Any, entries: Any, first: int, count: int) -> Any:
    return entries.take(_steps(pa, first, 4, count)).cast(pa.string())


def _steps(pa: Any, first: int, step: int, count: int) -> Any:
    """Returns `count` numbers that start at `first` and grow by `step`."""
    steps = pa.compute.cumulative_sum(pa.repeat(pa.scalar(step, pa.int32()), count))
    return pa.compute.add(steps, pa.scalar(first - step, pa.int32()))


def _cells(numbers: Any) -> memoryview:
    return memoryview(numbers.buffers()[1]).cast("B")[: 4 * len(numbers)].cast("i")


def _empty(pa: Any, count: int) -> Any:
    texts = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), texts, texts)


def _maps(pa: Any, offsets: list[int], keys: list[str], values: list[str]) -> Any:
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


_decoder: Final = msgspec.msgpack.Decoder(list[dict[str, str]])
