"""RowColumns: what a reader delivers as rows, a column each, packed so that Arrow can take them as they are.

Owns: the columns of a batch while it is put together, one row for each plain message and each body. A run of plain messages is added as
it lies in its frame, with no Python object for a row; everything else is added message by message. Both ways give the same rows. It
knows nothing of Arrow; `wal.bridge` and Spark make batches of it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import FrameHeader, PackedColumns
from wal.message import ImmutableMessage, MessageType, Origin, TimeTickMessage

__all__ = ["NO_TXN", "RowColumns"]

NO_TXN: Final = -1
"""The transaction id of a row that belongs to none."""
_NUMBER: Final = struct.Struct("<I")
_TICK: Final = struct.Struct("<Q")
_TYPE: Final = struct.Struct("<H")
_INSERT: Final = _TYPE.pack(MessageType.INSERT)
_ALL: Final = 1 << 32
_COUNTED: Final = 1 << 13
_COUNTING: Final = array("I", range(_COUNTED)).tobytes()


class RowColumns:
    """Little-endian columns of `rows` rows; lengths, counts and indices are 4 bytes an entry.

    `ids`, `tick_bases`, `indices`, `payload_lens` and `payloads` are pieces to be joined: growing a buffer by pieces would copy it
    many times over. `ids` are MessageIDs' bytes, all of one width, `id_width`; rows listed in `without_id` have none. A row's tick is the
    sum of its entries in `tick_bases` (8 bytes) and `indices`. `payloads` make up `payload_bytes`.

    `types` are numbers of 2 bytes, `vchannels` indices into `names`, `txn_ids` of 8 bytes, NO_TXN for none. `properties_counts` says how
    many of `keys` and `values` a row has. Empty while nothing says otherwise are `types` (all INSERT), `vchannels` (all of the one
    name), `txn_ids` (no transactions), `properties_counts` (no properties).
    """

    __slots__ = (
        "_codes", "id_width", "ids", "indices", "keys", "names", "payload_bytes", "payload_lens", "payloads", "properties_counts",
        "rows", "tick_bases", "txn_ids", "types", "values", "vchannels", "without_id",
    )  # fmt: skip

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self.payload_bytes = 0
        self.rows = 0
        self.id_width = 0
        self.ids: list[bytes | bytearray] = []
        self.without_id: list[int] = []
        self.tick_bases: list[bytes] = []
        self.indices: list[bytes] = []
        self.names: list[str] = []
        self.vchannels = bytearray()
        self.types = bytearray()
        self.txn_ids = bytearray()
        self.payload_lens: list[bytes] = []
        self.payloads: list[bytes | memoryview] = []
        self.properties_counts = bytearray()
        self.keys: list[str] = []
        self.values: list[str] = []

    @property
    def size(self) -> int:
        """About how many bytes the rows hold."""
        return self.payload_bytes + (self.id_width + 32) * self.rows + 64 * len(self.keys)

    def add_run(self, origin: Origin, vchannel: str, header: FrameHeader, run: PackedColumns) -> None:
        """Adds a run of plain messages of the frame with this header."""
        count = run.count
        indices = run.indices
        if indices is None:
            indices = _counting(run.first_index, count)
        self._add_ids(origin, indices, count, below=header.indices)
        self.tick_bases.append(_TICK.pack(header.first_tick) * count)
        self.indices.append(indices)
        self._add_vchannel(vchannel, count)
        self._add_types(run.types, count)
        if self.txn_ids:
            self.txn_ids += _NO_TXN * count
        self.payload_lens.append(run.payload_lens)
        self.payloads.append(run.payloads)
        self.payload_bytes += len(run.payloads)
        self._add_properties(run, count)
        self.rows += count

    def add_messages(self, messages: Sequence[ImmutableMessage]) -> None:
        """Adds messages of any kind, each with all its bodies."""
        for message in messages:
            for body in message.bodies():
                self._add(body)

    def _add(self, body: ImmutableMessage) -> None:
        if isinstance(body, TimeTickMessage) and not body.has_event:
            self.without_id.append(self.rows)
        index = _NUMBER.pack(body._index)
        self._add_ids(body._origin, index, 1, below=_ALL)
        self.tick_bases.append(_TICK.pack(body.time_tick - body._index))
        self.indices.append(index)
        self._add_vchannel(body.vchannel, 1)
        self._add_types(_TYPE.pack(body._type), 1)
        if body.txn_context is not None:
            if not self.txn_ids:
                self.txn_ids += _NO_TXN * self.rows
            self.txn_ids += _TICK.pack(body.txn_context.txn_id)
        elif self.txn_ids:
            self.txn_ids += _NO_TXN
        self.payload_lens.append(_NUMBER.pack(len(body.payload)))
        self.payloads.append(body.payload)
        self.payload_bytes += len(body.payload)
        properties = body.properties
        if properties or self.properties_counts:
            self._count_properties(_NUMBER.pack(len(properties)))
            self.keys += properties
            self.values += properties.values()
        self.rows += 1

    def _add_ids(self, origin: Origin, indices: bytes, count: int, *, below: int) -> None:
        """The bytes of ids that differ in their index only: as many copies of one, each with its own index put in."""
        pattern = bytes(origin.message_id(0))
        width = len(pattern)
        if self.rows == 0:
            self.id_width = width
        elif width != self.id_width:
            raise AssertionError(f"ids of {width} bytes among ids of {self.id_width}: a batch holds rows of one log")
        ids = bytearray(pattern * count)
        ids[width - 1 :: width] = indices[::4]  # big-endian there
        if below > 1 << 8:
            ids[width - 2 :: width] = indices[1::4]
        if below > 1 << 16:
            ids[width - 3 :: width] = indices[2::4]
            ids[width - 4 :: width] = indices[3::4]
        self.ids.append(ids)

    def _add_vchannel(self, vchannel: str, count: int) -> None:
        code = self._codes.get(vchannel)
        if code is None:
            code = self._codes[vchannel] = len(self.names)
            self.names.append(vchannel)
            if code == 1:
                self.vchannels += bytes(4 * self.rows)
        if code or len(self.names) > 1:
            self.vchannels += _NUMBER.pack(code) * count

    def _add_types(self, types: bytes | None, count: int) -> None:
        if types is not None:
            if not self.types:
                if types == _INSERT * count:
                    return
                self.types += _INSERT * self.rows
            self.types += types
        elif self.types:
            self.types += _INSERT * count

    def _add_properties(self, run: PackedColumns, count: int) -> None:
        if run.properties_lens is None or not run.properties:
            if self.properties_counts:
                self.properties_counts += bytes(4 * count)
            return
        lengths = memoryview(run.properties_lens).cast("I")
        filled = len(lengths) - list(lengths).count(0)
        try:
            # Maps one after the other, with a head in front, are an array of maps: one call decodes all.
            maps = _decoder.decode(b"\xdd" + filled.to_bytes(4, "big") + run.properties)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"stored properties cannot be decoded: {error}", expected="MessagePack maps of str to str"
            ) from error
        self.keys += chain.from_iterable(maps)
        self.values += chain.from_iterable(map(dict.values, maps))
        counts = iter(map(len, maps))
        if filled == count:
            self._count_properties(array("I", counts))
        else:
            self._count_properties(array("I", [next(counts) if length else 0 for length in lengths]))

    def _count_properties(self, counts: bytes | array[int]) -> None:
        if not self.properties_counts:
            self.properties_counts += bytes(4 * self.rows)
        self.properties_counts += counts


def _counting(first: int, count: int) -> bytes:
    if first + count <= _COUNTED:
        return _COUNTING[4 * first : 4 * (first + count)]
    return array("I", range(first, first + count)).tobytes()


_NO_TXN: Final = NO_TXN.to_bytes(8, "little", signed=True)
_decoder: Final = msgspec.msgpack.Decoder(list[dict[str, str]])
