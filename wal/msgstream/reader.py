"""ChannelReader: the actor that receives and decodes the pages of one channel, one for each credit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from actors import Actor
from wal.msgstream.acker import Ack, Acker
from wal.msgstream.medium import MediumConsumer
from wal.msgstream.page import Decoder, Page, decode
from wal.msgstream.refused import OnRefused

__all__ = ["CREDIT", "PACK_MESSAGES_MAX", "ChannelReader"]

_log: Final = logging.getLogger("wal.msgstream")

PACK_MESSAGES_MAX: Final = 1_024
"""The most messages in a page, and so in a pack of a stream without time ticks."""
CREDIT: Final = None
"""The message to the actor: receive one page more."""


class ChannelReader(Actor):
    """Receives from a consumer. An error ends it and goes to `fail`; a page goes to `arrived`."""

    def __init__(
        self,
        channel: str,
        sub_name: str,
        consumer: MediumConsumer,
        acker: Acker,
        decoder: Decoder,
        *,
        on_refused: OnRefused | None,
        arrived: Callable[[Page], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.received: int = 0
        self.refused: int = 0
        self._channel = channel
        self._sub_name = sub_name
        self._consumer = consumer
        self._acker = acker
        self._decoder = decoder
        self._on_refused = on_refused
        self._arrived = arrived
        self._fail = fail
        self._ended = False

    async def receive(self, batch: list[Any]) -> None:
        for _ in batch:
            if self._ended:
                return
            try:
                page = await self._receive_page()
            except Exception as error:
                self._ended = True
                self._fail(error)
            else:
                self._arrived(page)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._fail(cause)

    async def _receive_page(self) -> Page:
        """Returns the next page with a message; one of refused messages alone is acknowledged here."""
        while True:
            received = await self._consumer.receive(PACK_MESSAGES_MAX)
            page = decode(received, self._channel, self._sub_name, self._decoder)
            self.received += len(received)
            if page.refused:
                self._refuse(page)
            if page.msgs:
                return page
            await self._acker.room()
            self._acker.ref.tell(Ack(page.msg_ids))

    def _refuse(self, page: Page) -> None:
        self.refused += len(page.refused)
        first = page.refused[0]
        _log.warning(
            "skipped %d messages of channel %r; the first one, %s: %s",
            len(page.refused),
            self._channel,
            first.msg_id.hex(),
            first.reason,
        )
        if self._on_refused is not None:
            for refused in page.refused:
                self._on_refused(refused)
