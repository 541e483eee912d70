"""Subscription: a channel that a stream consumes: its consumer, the actors that read and acknowledge, and the pages that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from actors import ActorSystem
from wal.msgstream.acker import Ack, Acker
from wal.msgstream.medium import MediumConsumer
from wal.msgstream.page import Decoder, Page
from wal.msgstream.reader import CREDIT, ChannelReader
from wal.msgstream.refused import OnRefused

__all__ = ["Subscription"]


class Subscription:
    """One channel of a consuming stream. At most `pages_max` pages wait here, and one more is being received."""

    def __init__(self, channel: str, sub_name: str, consumer: MediumConsumer) -> None:
        self.channel: Final = channel
        self.sub_name: Final = sub_name
        self.consumer: Final = consumer
        self.pages: Final[deque[Page]] = deque()
        self.delivered: int = 0
        """The messages in the packs that were consumed."""
        self._reader: ChannelReader | None = None
        self._acker: Acker | None = None
        self._pages_max = 1
        self._paused = False

    @property
    def received(self) -> int:
        """The messages that were received, including those that still wait."""
        return 0 if self._reader is None else self._reader.received

    @property
    def undecodable(self) -> int:
        """The messages that were skipped because they could not be decoded."""
        return 0 if self._reader is None else self._reader.refused

    @property
    def acked(self) -> int:
        """The messages that the medium knows to be handled."""
        return 0 if self._acker is None else self._acker.acked

    def start(
        self,
        system: ActorSystem,
        decoder: Decoder,
        *,
        pages_max: int,
        on_refused: OnRefused | None,
        arrived: Callable[[Subscription], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Begins to receive. `arrived` is called after a page was added to `pages`."""

        def add(page: Page) -> None:
            self.pages.append(page)
            self._resume(paused=True)
            arrived(self)

        self._pages_max = pages_max
        self._acker = Acker(self.consumer, fail=fail)
        self._reader = ChannelReader(
            self.channel,
            self.sub_name,
            self.consumer,
            self._acker,
            decoder,
            on_refused=on_refused,
            arrived=add,
            fail=fail,
        )
        system.spawn(self._acker, name=f"acks of {self.channel}")
        system.spawn(self._reader, name=f"reader of {self.channel}").tell(CREDIT)

    def take_page(self) -> Page:
        """Removes and returns the oldest page; there must be one."""
        page = self.pages.popleft()
        self._resume(paused=self._paused)
        return page

    async def ack_room(self) -> None:
        """Returns when `ack` may be called."""
        if self._acker is not None:
            await self._acker.room()

    def ack(self, ack: Ack) -> None:
        """Begins to acknowledge these messages."""
        if self._acker is not None:
            self._acker.ref.tell(ack)

    async def drain(self) -> None:
        """Ends the acknowledging, after what was asked for."""
        if self._acker is not None:
            await self._acker.ref.stop()

    def cut_off(self) -> None:
        """Ends the reading, whatever it waits for."""
        if self._reader is not None:
            self._reader.ref.cut_off()

    def _resume(self, *, paused: bool) -> None:
        """Has the next page received if there is room for it, and none is being received."""
        self._paused = paused
        if paused and self._reader is not None and len(self.pages) < self._pages_max:
            self._paused = False
            self._reader.ref.tell(CREDIT)
