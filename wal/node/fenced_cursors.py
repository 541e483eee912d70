"""FencedCursors: the cursors of the pchannels that a streaming node has, in the metadata that all nodes share.

They are fenced, unlike those of a log in one process (`CursorsInKV`); who may move a cursor that has a home is asked in `cursor_claims.py`.
Every change compares the claim of the cursor's pchannel, in the same operation of etcd: a save, a deletion or a mark that is still on its
way when another node takes the pchannel over changes nothing, and raises ChannelFencedError. So the new owner's cursors are moved by nobody
else. Cursors of pchannels that are not here are read, and left alone.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from wal.channels.pchannels import PREFIX, PChannelMeta, encode
from wal.errors import ChannelFencedError, ChannelNotExistError, WALError
from wal.kv import KVBase
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.files import encode_cursor, file_name, file_prefix
from wal.read.cursors.in_kv import MARK, MARKS_MAX, CursorsInKV, cursor_in
from wal.storage.metadata import CURSOR_ROOT


class FencedCursors(CursorsInKV):
    """See the top of the file. `claim` returns the record of a pchannel in the term in which it is here, or None."""

    def __init__(self, kv: KVBase, claim: Callable[[str], PChannelMeta | None]) -> None:
        super().__init__(kv.under(CURSOR_ROOT))
        self._metadata = kv
        self._claim = claim
        self._begun: dict[str, PChannelMeta | None] = {}
        """The claims under which the marks of earlier owners were removed, by the keys of the marks."""

    async def begin(self, pchannels: Iterable[str]) -> None:
        names = tuple(pchannels)
        claims = {f"{MARK}/{name}": self._claim(name) for name in names}
        # A pchannel that was elsewhere meanwhile may have come back with a mark.
        self._keys = tuple(key for key in self._keys if claims.get(key) == self._begun.get(key))
        await super().begin(names)
        self._begun = claims

    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        with self.locked():
            self._ask(self._delete(file_prefix(name) if vchannels is None else file_name(CursorKey(name, vchannels))))

    def _put(self, cursor: Cursor) -> None:
        text = base64.b64encode(encode_cursor(cursor)).decode()
        self._ask(self._change((cursor.pchannel,), saves={_key(file_name(cursor.key)): text}))

    def _remove(self, key: CursorKey) -> None:
        self._ask(self._delete(file_name(key)))

    async def _save_marks(self, keys: tuple[str, ...], mark: str) -> None:
        if MARK in keys:  # that of version 0.1.0, for all pchannels at once
            await self._kv.save(MARK, mark)
        here = [key for key in keys if self._claim(key.removeprefix(f"{MARK}/")) is not None]
        for first in range(0, len(here), MARKS_MAX // 2):
            some = here[first : first + MARKS_MAX // 2]
            await self._change([key.removeprefix(f"{MARK}/") for key in some], saves=dict.fromkeys(map(_key, some), mark))

    async def _delete(self, prefix: str) -> None:
        """Deletes the cursors whose keys begin so and whose pchannels are here; also damaged ones, which say nothing of a pchannel."""
        keys, texts = await self._kv.load_with_prefix(prefix)
        for key, text in zip(keys, texts, strict=True):
            pchannels: tuple[str, ...] = ()
            with contextlib.suppress(WALError):
                pchannels = (cursor_in(key, text).pchannel,)
            if not pchannels or self._claim(pchannels[0]) is not None:
                await self._change(pchannels, compare={_key(key): text}, removals=(_key(key),))

    async def _change(
        self,
        pchannels: Sequence[str],
        *,
        compare: Mapping[str, str] | None = None,
        saves: Mapping[str, str] | None = None,
        removals: Sequence[str] = (),
    ) -> None:
        """Changes the metadata while these pchannels are here in their terms. Does nothing if a key of `compare` differs."""
        claims: dict[str, str] = {}
        for name in pchannels:
            if (meta := self._claim(name)) is None:
                raise ChannelNotExistError(f"pchannel {name} is not on this node any more: its cursors are kept where it is now")
            claims[PREFIX + name] = encode(meta)
        failed = await self._metadata.change_if(claims | dict(compare or {}), saves=saves, removals=removals)
        if failed in claims:
            raise ChannelFencedError(
                f"{failed} was claimed by another node: the cursor was not changed here; ask AssignmentDiscover where the pchannel is"
            )


def _key(name: str) -> str:
    return f"{CURSOR_ROOT}/{name}"
