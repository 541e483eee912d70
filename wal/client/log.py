"""RemoteLog: the engine of a log that servers on the network serve.

Owns the connection and the parts: producers, pchannels for readers, vchannels, cursors, broadcasts. The limits of the log and its
other settings belong to the server: this side takes them over and refuses others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio._backends._asyncio  # noqa: F401 - anyio would import it at the first task group: 40 ms on the loop
import msgspec

from actors import Actor, ActorRef, ActorSystem
from wal.client.appends import RemoteAppends
from wal.client.directory import RemoteDirectory, ShownVChannels
from wal.client.figures import SeenTick
from wal.client.nodes import Nodes
from wal.client.producer import Producer
from wal.client.remote_log import RemoteReadableLog
from wal.client.remote_pchannel import RemotePChannel
from wal.client.submit import RemoteRequests
from wal.client.supervision import Supervision
from wal.engine import CursorHome, LogStatistics
from wal.errors import ClosedError, InvalidArgumentError, LogWentBackError, WALError, closed_log
from wal.location import ServerLocation
from wal.message import LogPosition
from wal.message.matching import Matching
from wal.network import TlsFiles
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey, pattern_home
from wal.read.figures import PChannelStatistics
from wal.read.options import Selection, TickPosition
from wal.read.pchannel import ReadablePChannel
from wal.requests.cursors import CursorSave, DeleteCursors, ListCursors, LoadCursor, NameCursorHome, SaveCursor
from wal.requests.log import DescribeLog, LogDescription, LogSettings
from wal.requests.request import Answer, Request
from wal.rpc.connection import UNREACHABLE_S, Connection
from wal.runtime.async_only import import_late
from wal.runtime.secret import Secret
from wal.runtime.tasks import end_tasks
from wal.settings import Settings
from wal.storage.base import LogSnapshot
from wal.write.in_flight import InFlight
from wal.write.txn_table import TxnLimits

if TYPE_CHECKING:
    from wal.client.coordinators import Coordinators

TIMEOUT_S: Final = 10.0
"""The deadline of a call, and how long the opening waits for a server at least."""
UNREACHED_S: Final = 1.0
"""How long the close waits before it asks whether the server is there, and for the answer. Calls that still wait then end without it."""
OWN_SETTINGS: Final = frozenset(("in_flight_bytes_max",))
"""The settings of a log that each client may choose for itself."""


class RemoteLog:
    """A log on the network. `open` sets its parts, and comes before every call but `close` and `abandon`."""

    place: str
    is_waiting: Final = False
    name: str
    """The name of the backend on the server."""
    frame_bytes_max: int
    appends: RemoteAppends
    cursors: RemoteCursors
    settings: Settings
    """The settings of the log."""

    def __init__(self, servers: ServerLocation, settings: Settings, *, read_only: bool, wait_s: float = 0.0) -> None:
        """With `wait_s` the opening waits at least that long for a server."""
        self.place = str(servers)
        self.released: bool = False
        self.pchannels: dict[str, RemotePChannel] = {}
        self.producers: dict[str, Producer] = {}
        self.in_flight: InFlight = InFlight(settings.in_flight_bytes_max)
        self.seen: SeenTick = SeenTick()
        self.system: ActorSystem = ActorSystem("wal")
        self.supervision: Supervision = Supervision(self._end)
        self._servers = servers
        self._client_settings = settings
        self._read_only = read_only
        self._wait_s = wait_s
        self._log_id = 0
        """The id of the log that the server has sent; 0 before that."""
        self._coordinators: Coordinators | None = None
        self._connection: Connection
        self._nodes: Nodes
        self._directory: RemoteDirectory
        self._requests: RemoteRequests
        self._spawned = 0

    @property
    def writable(self) -> RemoteLog | None:
        """This log, unless it was opened for reading."""
        return None if self._read_only else self

    @property
    def vchannels(self) -> ShownVChannels:
        """The vchannels as the server has shown them."""
        return self._directory.known

    # -- opening and closing

    async def open(self) -> None:
        """Connects to a server and learns what the log has. Raises UnavailableError if none answers; a failure undoes what was done."""
        try:
            addresses = self._servers.addresses
            if self._servers.root is not None:
                await import_late("wal.client.coordinators")
                from wal.client.coordinators import Coordinators

                self._coordinators = await Coordinators.open(self._servers.root, wait_s=self._wait_s)
                addresses = self._coordinators.addresses
            self._connection = await self._connected(*addresses)
        except BaseException:
            if self._coordinators is not None:
                await self._coordinators.close()
            self.released = True
            raise
        if self._coordinators is not None:
            self._coordinators.follow(self._connection.add)
        self._nodes = Nodes(self._connection, self._connected, self.supervision)
        try:
            await self._open()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.close()))
            raise

    async def close(self) -> None:
        """Waits for the outcomes of what is in flight, ends the readers and disconnects."""
        self.supervision.closing = True
        self.in_flight.fail(_closed)
        giving_up = asyncio.get_running_loop().create_task(self._nodes.close_unless_answering(UNREACHED_S))
        try:
            if hasattr(self, "appends"):
                await self.appends.close()
            await asyncio.gather(*(producer.close() for producer in self.producers.values()))
        finally:
            await end_tasks(giving_up)
        self._connection.stop()
        self._nodes.stop()
        if hasattr(self, "_directory"):
            await self._directory.close()
        cause = _closed()
        await asyncio.gather(*(pchannel.close(cause) for pchannel in self.pchannels.values()))
        await self.system.stop()
        await self._nodes.close()
        await self._connection.close()
        if self._coordinators is not None:
            await self._coordinators.close()
        self.released = True

    def _end(self, failure: WALError) -> None:
        """Ends the client: its readers, its requests in flight, and every later call get this error."""
        self.in_flight.fail(lambda: failure)
        for name, producer in self.producers.items():
            producer.end(_of(failure, name))
        for name, pchannel in self.pchannels.items():
            pchannel.tail.fail(_of(failure, name))
        self._nodes.stop(failure)
        self._connection.stop(failure)

    def abandon(self) -> None:
        """Does nothing but note it: a connection ends with the process, and the server releases what a client held. Idempotent."""
        for pchannel in self.pchannels.values():
            pchannel.tail.failure = pchannel.tail.failure or _closed()
        self.released = True

    async def _open(self) -> None:
        timeout_s = max(self._wait_s, self._connection.timeout_s)
        description = await self._describe(timeout_s)
        self._log_id = description.log_id
        self._connection.belong_to(self._log_id, self.supervision.end)
        self.settings = self._checked(description.settings.settings())
        self.name = description.wal_name
        self.frame_bytes_max = description.frame_bytes_max
        timeout_s = max(timeout_s, UNREACHABLE_S)  # the server that has just answered may not lead any more
        await self._nodes.start(timeout_s)
        await self.system.start()
        self._know_pchannels(description)
        self.cursors = RemoteCursors(self.pchannels, self.submit)
        self._directory = RemoteDirectory(self._connection, self.pchannels, self.place, self.supervision, use=self.use)
        await self._directory.start(timeout_s)
        self.appends = RemoteAppends(
            self._directory.known,
            self.producers,
            self.in_flight,
            self.settings,
            TxnLimits(self.settings.txn_bytes_max, self.settings.txn_bodies_max, self.settings.open_txn_bytes_max, self.frame_bytes_max),
            locate=self._directory.located_to_write,
            save_of=self.cursors.save_of,
        )
        in_process = self._servers.root is not None
        self._requests = RemoteRequests(
            self._connection,
            self._nodes,
            self.pchannels,
            self._directory,
            self.appends,
            self.seen,
            self.in_flight,
            self.settings,
            in_process=in_process,
        )

    async def use(self, names: Iterable[str]) -> None:
        """Takes these pchannels into use, unless they are: a server that is started again may have more of them.

        All new ones are, because their order decides where a vchannel is created.
        """
        if not self.pchannels.keys() >= set(names):
            self._know_pchannels(await self._describe(None))

    async def _look_for_pchannels(self) -> None:
        """Takes new pchannels of a restarted server into use, before a read with a pattern passes their first events."""
        if any(not reader.vchannels for pchannel in self.pchannels.values() for reader in pchannel.readers):
            self._know_pchannels(await self._describe(None))

    async def _describe(self, timeout_s: float | None) -> LogDescription:
        return await self._connection.submit(DescribeLog(), timeout_s=timeout_s)

    def _know_pchannels(self, description: LogDescription) -> None:
        """Takes the new ones of these pchannels into use, also for open reads with a pattern.

        None is looked at before a reader or a writer uses it: its server may be away.
        """
        for identity in description.pchannels:
            name = identity.name
            if name in self.pchannels:
                continue
            log = RemoteReadableLog(
                LogSnapshot(identity.origin, identity.lineage, identity.term, 0, (0, 0), 0, False, None), self._nodes, self.supervision.end
            )
            pchannel = self.pchannels[name] = RemotePChannel(log, self.supervision, moves=partial(self._nodes.may_move, name))
            pchannel.on_new_term = self._look_for_pchannels
            for reader in [reader for other in self.pchannels.values() for reader in list(other.readers)]:
                reader.joined()
            self.producers[name] = Producer(
                name, partial(self._node, name), self.in_flight, self.seen, partial(self._nodes.reporter, name), self.supervision, pchannel
            )

    def _checked(self, settings: Settings) -> Settings:
        """Returns the settings of the log. Raises InvalidArgumentError if the caller chose another value for one of them."""
        defaults, client_settings = Settings(), self._client_settings
        for field in LogSettings.__struct_fields__:
            chosen, served = getattr(client_settings, field), getattr(settings, field)
            if field not in OWN_SETTINGS and chosen != getattr(defaults, field) and chosen != served:
                raise InvalidArgumentError(
                    f"{field}={chosen} contradicts the log at {self.place}, which has {field}={served}: the setting belongs to the log, so "
                    "give it to the server, and leave it out here"
                )
        return settings.replace(in_flight_bytes_max=client_settings.in_flight_bytes_max)

    # -- servers

    def _node(self, pchannel: str) -> Connection:
        """Returns the connection to the server that has this pchannel."""
        return self._nodes.connection(pchannel)

    async def _connected(self, *addresses: str) -> Connection:
        """Returns a connection to one of these addresses, with this client's certificate and token."""
        servers, token = self._servers, self._client_settings.token
        tls = TlsFiles(ca=servers.ca, certificate=servers.certificate, key=servers.key) if servers.tls else None
        secret = None if token is None else Secret.of(token)
        connection = await Connection.open(addresses, tls=tls, token=secret, timeout_s=TIMEOUT_S)
        if self._log_id:
            connection.belong_to(self._log_id, self.supervision.end)
        return connection

    # -- vchannels

    async def attach_matching(self, pattern: Matching) -> tuple[list[tuple[RemotePChannel, Selection]], Callable[[Actor, str], ActorRef]]:
        """Returns all pchannels, caught up, each with the vchannels on it that match, and what starts an actor."""
        return await self._directory.attach_matching(pattern), self.spawn

    async def attach(self, names: tuple[str, ...]) -> tuple[RemotePChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel to read these vchannels on, caught up, the vchannels as they are now, and what starts an actor."""
        pchannel, selection = await self._directory.attach(names)
        return pchannel, selection, self.spawn

    def spawn(self, actor: Actor, name: str) -> ActorRef:
        """Starts an actor, which ends with the log at the latest. A number is added to make its name unique."""
        self._spawned += 1
        return self.system.spawn(actor, name=f"{name} #{self._spawned}")

    # -- the log

    async def submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request, from the servers that it is for."""
        return await self._requests.submit(request)

    def _statistics(self, pchannel: RemotePChannel) -> PChannelStatistics:
        producer = self.producers[pchannel.channel]
        return msgspec.structs.replace(
            pchannel.statistics(),
            frames=producer.written.frames,
            events=producer.written.events,
            open_transactions=producer.open_txns.count,
            open_transaction_bytes=producer.open_txns.bytes,
        )

    def statistics(self) -> LogStatistics:
        """Returns this client's counts since the log was opened."""
        return LogStatistics(
            self.name,
            len(self._directory.known.records),
            self.in_flight.size,
            self.in_flight.waiting,
            tuple(self._statistics(pchannel) for pchannel in self.pchannels.values()),
            bytes_in_flight_max=self.in_flight.bytes_max,
            appends_refused=self.in_flight.refused,
            appends_delayed=self.in_flight.delayed,
            role="client",
        )

    async def cursor_home(self, key: CursorKey, *, pchannel: str | None = None) -> CursorHome:
        """Returns the home of a cursor; the server names one if it has none."""
        save_of = self.cursors.save_of
        await import_late("wal.client.cursor_home")
        from wal.client.cursor_home import RemoteCursorHome  # consumers alone need it

        asked = pattern_home(self.pchannels) if key.pattern else pchannel or await self._directory.pchannel_of(key.vchannels[0])
        home = await self.submit(NameCursorHome(key, asked))
        return RemoteCursorHome(key, home, self.submit, self.appends, self.supervision, save_of)


def _tick_position(info: CursorInfo) -> TickPosition | None:
    """Returns the position of a cursor of a pattern, which a server sends without its kind."""
    return None if info.position is None else TickPosition.at(info.position.time_tick, info.position.message_id.pchannel)


def _of(failure: WALError, pchannel: str) -> WALError:
    """Returns the error that ended the client, for one pchannel: `last_common` is an id of it, or None."""
    return failure.of(pchannel) if isinstance(failure, LogWentBackError) else failure


def _closed() -> ClosedError:
    return closed_log()


class RemoteCursors:
    """The cursors of a log on the network. The server that has a pchannel keeps its cursors; nothing is kept here.

    See `wal.read.cursors.service.Cursors`. `submit` sends a request to the servers.
    """

    def __init__(self, pchannels: Mapping[str, ReadablePChannel], submit: Callable[[Request[Any]], Awaitable[Any]]) -> None:
        self._pchannels = pchannels
        self._submit = submit

    def save_of(self, cursor: Cursor, after: LogPosition | None = None) -> CursorSave:
        """Returns the save of a cursor by a transaction."""
        return CursorSave(cursor.key, self._below_end(cursor), after=after)

    def _below_end(self, cursor: Cursor) -> Cursor:
        """Returns the cursor as the server takes it, as of now."""
        # The smallest position of a later frame may be above the end of the log, where blocks are aligned; nothing lies between the two.
        start = min(cursor.start, (self._pchannels[cursor.pchannel].tail.durable_end, 0))
        return msgspec.structs.replace(cursor, start=start, saved_at=time.time())

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel, None when nothing is saved."""
        cursor: Cursor | None = await self._submit(LoadCursor(key, pattern_home(self._pchannels) if key.pattern else pchannel))
        return cursor

    async def save(self, cursor: Cursor) -> None:
        """Stores a reader's position durably. Without an answer it is sent again: saving the same position twice does no harm."""
        home = pattern_home(self._pchannels) if cursor.key.pattern else ""
        await self._submit(SaveCursor(self._below_end(cursor), pchannel=home))

    async def infos(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels."""
        infos: Sequence[CursorInfo] = await self._submit(ListCursors())
        return [msgspec.structs.replace(info, position=_tick_position(info)) if info.pattern else info for info in infos]

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes the cursor of this name and set, or all of this name; a missing cursor is fine."""
        await self._submit(DeleteCursors(name, vchannels))
