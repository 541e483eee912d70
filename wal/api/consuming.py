"""The accesser's calls that concern consumers: consume, redrive and seek.

They are imported at the first call of one of them, since most programs that append or read have no consumer. A consumer is
`wal/consumers/consumer.py`; the lifecycle of the log has the registry of running consumers, and ends them when the log is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from wal.consumers.consumer import Consumer, ConsumerRegistry
from wal.consumers.delivery import Delivery
from wal.consumers.options import ConsumerOptions
from wal.consumers.outputs import DEAD_LETTER, redriven
from wal.errors import ChannelNotExistError, HandlerFailedError, InvalidArgumentError
from wal.message import Message, MessageID, MessageType
from wal.message.matching import Matching
from wal.read.cursors.cursor import REDRIVE
from wal.read.cursors.service import Cursors, CursorUse
from wal.read.merged import AttachMatching
from wal.read.options import NAMES_MAX, DeliverPolicy, ReadOptions, ReadPosition, StartAt, StartFrom, named
from wal.read.scanner import Scanner
from wal.requests.appends import WriteOptions
from wal.requests.vchannels import ListVChannels

if TYPE_CHECKING:
    from wal.api.lifecycle import Lifecycle
    from wal.read.loop import Attach


def consume(lifecycle: Lifecycle, options: ConsumerOptions, *, follow: bool = True) -> Consumer:
    """Returns a consumer that ends with the log."""
    lifecycle.check_writable()
    registry: ConsumerRegistry | None = lifecycle.consumers
    if registry is None:
        registry = lifecycle.consumers = ConsumerRegistry()
    return Consumer(options, lifecycle.ready, registry, follow=follow)


async def redrive(lifecycle: Lifecycle, dead_letter: str, limit_s: float | None) -> int:
    """Appends dead letters to where they came from; see `WALAccesser.redrive`."""
    while True:
        count, is_complete = await _redrive(lifecycle, dead_letter, limit_s)
        if count or is_complete or limit_s is None:
            return count
        limit_s *= 2  # it was too short for one message


async def _redrive(lifecycle: Lifecycle, dead_letter: str, limit_s: float | None) -> tuple[int, bool]:
    """Returns the number of the dead letters that were appended within the limit, and whether they were all."""

    async def again(delivery: Delivery) -> None:
        message = redriven(delivery.message)
        kind = delivery.message.properties.get(DEAD_LETTER + "type")
        if kind is None:
            delivery._outputs = delivery._owner.add_output(message, delivery._outputs, is_letter=True)
            return
        appends = (await lifecycle.ready()).appends
        special = Message(message.vchannel, message.payload, message_type=MessageType[kind], properties=message.properties)
        await appends.append_waiting(special, WriteOptions(key=f"redrive:{delivery.message.message_id}"))

    options = ConsumerOptions.of(dead_letter, again, cursor=REDRIVE, attempts=1, exclusive="error")
    consumer = consume(lifecycle, options, follow=False)
    (name,) = options.cursor.vchannels
    if name not in {info.name for info in await (await lifecycle.ready()).submit(ListVChannels())}:
        raise ChannelNotExistError(
            f"vchannel {name!r} does not exist, so it has no dead letters: redrive takes the vchannel that a consumer names as "
            "its dead_letter, which exists from its first dead letter on"
        )
    is_complete = True
    try:
        async with asyncio.timeout(limit_s):
            await consumer.run()
    except TimeoutError:
        is_complete = False
    except HandlerFailedError as error:
        raise error.__cause__ or error from None
    finally:
        await consumer.close()
    return consumer.statistics().handled, is_complete


async def seek(
    lifecycle: Lifecycle,
    attach: Attach,
    attach_matching: AttachMatching,
    cursors: Callable[[], Awaitable[Cursors]],
    cursor: str,
    to: object,
    vchannels: tuple[str, ...] | None,
    *,
    reset: bool = False,
) -> None:
    """Moves a cursor; see `WALAccesser.seek`."""
    policy, resume = _target(to)
    names = await _names(await cursors(), cursor, vchannels)
    options = ReadOptions.of(names, deliver_policy=policy, resume=resume)
    async with Scanner(options, attach=attach if options.pattern is None else attach_matching) as scanner:
        if reset:  # not before the read has begun: a target that is refused leaves the cursor as it is
            await (await cursors()).delete(cursor, None if isinstance(names, Matching) else names)
        scanner._loop.cursor = CursorUse(cursor, names, cursors)
        await scanner.save()
    if lifecycle.consumers is not None:
        lifecycle.consumers.moved(cursor)


def _target(to: object) -> tuple[DeliverPolicy | None, ReadPosition | None]:
    """Returns the target of a seek, as a policy or as a position."""
    if isinstance(to, ReadPosition):
        return None, to
    if isinstance(to, MessageID):
        return StartFrom(to), None
    if isinstance(to, datetime):
        return StartAt(to), None
    if isinstance(to, DeliverPolicy):
        return to, None
    raise TypeError(
        f"to must be a deliver policy such as All(), Latest() or StartAt(moment), a ReadPosition, a MessageID (that message is next) or "
        f"a datetime, not {to!r:.80}"
    )


async def _names(cursors: Cursors, name: str, vchannels: tuple[str, ...] | None) -> tuple[str, ...] | Matching:
    """Returns what the cursor to move is of: the vchannels that are given, or what the only saved cursor of this name is of."""
    if vchannels is not None:
        return vchannels
    saved = [info for info in await cursors.infos() if info.name == name]
    if not saved:
        raise InvalidArgumentError(f"no cursor {name!r} is saved: give its vchannels=, and it is created")
    check_only(name, [info.vchannels for info in saved])
    return Matching(saved[0].pattern) if saved[0].pattern else saved[0].vchannels


def check_only(name: str, saved: Sequence[tuple[str, ...]]) -> None:
    """Raises InvalidArgumentError if several cursors with this name are saved, of these vchannels."""
    if len(saved) > 1:
        found = " and ".join(f"({named(one)})" for one in saved[:NAMES_MAX])
        raise InvalidArgumentError(f"{len(saved)} cursors are named {name!r}, of {found}: say which with vchannels=")
