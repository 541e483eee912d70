"""Place: an empty location for a log other than a journal, a way to open the log there, and the options for Spark."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from tests.probes import row_of
from tests.spark.queries import Row
from wal import bridge
from wal.bridge import BlockingOpening, BlockingWAL
from wal.spark import frame_source


class Place(abc.ABC):
    @property
    @abc.abstractmethod
    def location(self) -> str:
        """The location of the log."""

    @property
    @abc.abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The settings of the opening."""

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, str]:
        """The options of the log for Spark."""

    @property
    @abc.abstractmethod
    def secrets(self) -> Sequence[str]:
        """The texts that no output may contain."""

    def open(self, **settings: Any) -> BlockingOpening:
        """Opens the log for writing."""
        return bridge.blocking(self.location, **{**self.settings, **settings})

    def expected(self, *names: str) -> list[Row]:
        """Returns the messages of these vchannels from the log's own readers. On Pulsar it takes over the log."""
        with self.open() as log:
            return [row for name in names for row in rows_of(log, name)]


def rows_of(log: BlockingWAL, name: str) -> list[Row]:
    with log.read(name, follow=False) as scanner:
        return [row_of(body) for message in scanner for body in message.bodies()]


def close_logs(location: str) -> None:
    """Closes the logs of this location that Spark keeps open in this process, whose reads have ended.

    The client of such a log would otherwise report that its server is gone, as an error in the middle of a later test.
    """
    for key in [key for key in frame_source._logs if key[-1].location == location]:
        frame_source._logs.pop(key).close()
