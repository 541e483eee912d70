"""Properties as an Arrow column of maps.

Owns the way from stored maps (MessagePack, see `wal.message.properties`) to Arrow's. Messages of one producer have few different
properties among many: what is stored alike is decoded once. CorruptionError when something stored is no map of str to str.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import msgspec

from wal.errors import CorruptionError

__all__ = ["properties_column"]


def properties_column(pa: Any, stored: Any, rows: int) -> Any:
    """The maps that are `stored`, a binary array (no bytes: no properties); None: `rows` rows without any."""
    if stored is None:
        return _maps(pa, [0] * (rows + 1), [], [])
    coded = stored.dictionary_encode()
    different = coded.dictionary
    return _decoded(pa, different).take(coded.indices)


def _decoded(pa: Any, stored: Any) -> Any:
    """The maps, each decoded."""
    some = stored.to_pylist()
    filled = sum(map(bool, some))
    try:
        # Maps one after the other, with a head in front, are an array of maps: one call decodes all.
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


def _maps(pa: Any, offsets: list[int], keys: list[str], values: list[str]) -> Any:
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


_decoder: Final = msgspec.msgpack.Decoder(list[dict[str, str]])
