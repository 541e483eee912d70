"""SqliteGroup: durable appends on SQLite with a hand-written group commit: the competitor to beat.

It is the afternoon's work of a good engineer with the standard library. One thread owns the connection, and the appends of one turn of the
loop are passed to it together. The thread puts all waiting appends into one transaction (`executemany`), and one `call_soon_threadsafe`
gives every caller its rowid. Its guarantee is the log's: durable when the await returns (`synchronous=FULL`: one fsync of SQLite's own
write-ahead log per commit). Messages that are appended together share one transaction, with whatever else waits. It has no ordered readers
and no recovery of its own: the rowid is the order, and SQLite's recovery is enough.

Tuned on the machine of README.md, 1 KB, each choice against its neighbours, interleaved: for many writers pages of 32 KiB and a checkpoint
every 64 MiB (154 k messages a second with 256 writers; 110 k with SQLite's defaults of 4 KiB and 1,000 pages), for a single writer the
defaults (4.7 k; 3.8 k with large pages, because a small log is overwritten in place). `locking_mode=EXCLUSIVE` spares the shared index.
That mode, and passing a turn's appends together rather than one by one, made no difference above the noise.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec


class Tuning(msgspec.Struct, frozen=True):
    """The page size of the database, and the number of pages in its write-ahead log before a checkpoint."""

    page_bytes: int
    checkpoint_pages: int


AS_IT_COMES: Final = Tuning(4096, 1000)
"""SQLite's defaults; best for a single writer."""
MANY: Final = Tuning(32_768, 2048)
"""Best for groups of some tens of KB and more."""

_INSERT: Final = "INSERT INTO log (vchannel, payload, properties) VALUES (?, ?, ?)"
_INSERT_KEYED: Final = "INSERT INTO log (vchannel, payload, key) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_Row = tuple[str, bytes, str | None]
"""The vchannel, the payload, and the properties as JSON; in a table with keys the key."""
_Waiting = asyncio.Future[int] | None
"""The callers that wait for rows; a caller that appended several at once waits for the last one."""
_Group = tuple[list[_Row], list[_Waiting]]

_encode_json: Final = msgspec.json.Encoder().encode


class SqliteGroup:
    """An append-only table. Create and use it within one running loop; `close` ends the thread.

    With `readers` other connections may read the file meanwhile; with `index` they find the rows of a vchannel. With `keys` every row has
    a unique key, and all appends are `append_keyed`.
    """

    def __init__(
        self, path: Path, *, tuning: Tuning = MANY, readers: bool = False, index: bool = False, apart: bool = False, keys: bool = False
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._rows: list[_Row] = []
        self._waiting: list[_Waiting] = []
        self._apart = apart
        self._keys = keys
        self._groups: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self.commits = 0
        """Transactions committed, each with one fsync."""
        self.rows = 0
        """The newest rowid."""
        self.on_commit: Callable[[], None] | None = None
        """Called on the loop after rows were committed, before their callers wake."""
        self._thread = threading.Thread(target=self._run, args=(path, tuning, readers, index), name="sqlite-group", daemon=True)
        self._thread.start()

    async def append(self, vchannel: str, payload: bytes, properties: dict[str, str] | None = None) -> int:
        """Appends a message and returns its rowid; it is durable then."""
        future: asyncio.Future[int] = self._loop.create_future()
        if not self._rows:
            self._loop.call_soon(self._hand_over)
        text = _encode_json(properties).decode() if properties else None
        self._rows.append((vchannel, payload, text))
        self._waiting.append(future)
        return await future

    async def append_keyed(self, vchannel: str, payload: bytes, key: str) -> int:
        """Appends a message unless one with this key is stored; returns the rowid of the stored one, which is durable then."""
        future: asyncio.Future[int] = self._loop.create_future()
        if not self._rows:
            self._loop.call_soon(self._hand_over)
        self._rows.append((vchannel, payload, key))
        self._waiting.append(future)
        return await future

    async def append_many(self, vchannel: str, payloads: Sequence[bytes]) -> int:
        """Appends messages in one transaction and returns the rowid of the last one; all are durable then."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self._apart:
            rows: list[_Row] = [(vchannel, payload, None) for payload in payloads]
            self._groups.put((rows, [*[None] * (len(rows) - 1), future]))
            return await future
        if not self._rows:
            self._loop.call_soon(self._hand_over)
        self._rows += [(vchannel, payload, None) for payload in payloads]
        self._waiting += [None] * (len(payloads) - 1)
        self._waiting.append(future)
        return await future

    async def append_copies(self, vchannels: Sequence[str], payload: bytes) -> int:
        """Appends a message to each of these vchannels in one transaction and returns the rowid of the last one; all are durable then."""
        future: asyncio.Future[int] = self._loop.create_future()
        if not self._rows:
            self._loop.call_soon(self._hand_over)
        self._rows += [(vchannel, payload, None) for vchannel in vchannels]
        self._waiting += [None] * (len(vchannels) - 1)
        self._waiting.append(future)
        return await future

    def close(self) -> None:
        """Commits the appends so far and ends the thread."""
        self._groups.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        self._groups.put((self._rows, self._waiting))
        self._rows, self._waiting = [], []

    def _run(self, path: Path, tuning: Tuning, readers: bool, index: bool) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        execute = connection.execute
        execute(f"PRAGMA page_size={tuning.page_bytes}")
        if not readers:
            execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        execute(f"PRAGMA wal_autocheckpoint={tuning.checkpoint_pages}")
        execute(
            "CREATE TABLE log (id INTEGER PRIMARY KEY, vchannel TEXT NOT NULL, payload BLOB NOT NULL, properties TEXT"
            f"{', key TEXT NOT NULL UNIQUE' if self._keys else ''})"
        )
        if index:
            execute("CREATE INDEX by_vchannel ON log (vchannel)")  # ends with the rowid, like every index of SQLite
        executemany, commit = connection.executemany, connection.commit
        insert = _INSERT_KEYED if self._keys else _INSERT
        open_for_more = True
        while open_for_more and (group := self._groups.get()) is not None:
            rows, waiting = group
            while not self._apart and not self._groups.empty():
                if (more := self._groups.get()) is None:
                    open_for_more = False
                    break
                rows += more[0]
                waiting += more[1]
            outcome: Callable[[], None]
            try:
                execute("BEGIN IMMEDIATE")
                inserted = executemany(insert, rows).rowcount
                commit()
                rowids: Iterable[int]
                if inserted == len(rows):
                    # The table has one writer and loses no rows, so the rowids of a group are the next ones.
                    rowids = range(self.rows + 1, self.rows + 1 + inserted)
                else:
                    rowids = [execute("SELECT id FROM log WHERE key = ?", (row[2],)).fetchone()[0] for row in rows]
            except sqlite3.Error as error:
                connection.rollback()
                outcome = _Failed(waiting, error)
            else:
                outcome = _Committed(waiting, rowids, self.on_commit)
                self.rows += inserted
                self.commits += 1
            self._loop.call_soon_threadsafe(outcome)
        connection.close()


class _Committed:
    """Calls the listener, and gives every caller of a group its rowid, on the loop."""

    __slots__ = ("_listener", "_rowids", "_waiting")

    def __init__(self, waiting: list[_Waiting], rowids: Iterable[int], listener: Callable[[], None] | None) -> None:
        self._waiting = waiting
        self._rowids = rowids
        self._listener = listener

    def __call__(self) -> None:
        if self._listener is not None:
            self._listener()
        for rowid, future in zip(self._rowids, self._waiting, strict=True):
            if future is not None and not future.done():
                future.set_result(rowid)


class _Failed:
    """Gives every caller of a group the error, on the loop."""

    __slots__ = ("_error", "_waiting")

    def __init__(self, waiting: list[_Waiting], error: sqlite3.Error) -> None:
        self._waiting = waiting
        self._error = error

    def __call__(self) -> None:
        for future in self._waiting:
            if future is not None and not future.done():
                future.set_exception(type(self._error)(*self._error.args))
