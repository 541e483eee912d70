"""Place: an empty place for a log that is no journal, a way to open the log there, and the options with which Spark finds it."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from tests.spark.queries import Row, row_of
from wal import bridge
from wal.bridge import BlockingOpening, BlockingWAL


class Place(abc.ABC):
    @property
    @abc.abstractmethod
    def location(self) -> str:
        """The location of the log."""

    @property
    @abc.abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The settings with which it is opened there."""

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, str]:
        """The options with which Spark finds it."""

    @property
    @abc.abstractmethod
    def secrets(self) -> Sequence[str]:
        """The texts that nothing may show."""

    def open(self, **settings: Any) -> BlockingOpening:
        """Opens the log for writing."""
        return bridge.blocking(self.location, **{**self.settings, **settings})

    def expected(self, *names: str) -> list[Row]:
        """Returns the messages that the log's own readers deliver of these vchannels. On Pulsar it takes over the log."""
        with self.open() as log:
            return [row for name in names for row in rows_of(log, name)]


def rows_of(log: BlockingWAL, name: str) -> list[Row]:
    with log.read(name, follow=False) as scanner:
        return [row_of(body) for message in scanner for body in message.bodies()]
