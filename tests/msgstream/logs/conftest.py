"""The fixtures of tests of streams over a log: a location on each backend and over the network, and an open log there."""

from tests.accesser.conftest import location, log, watchdog

__all__ = ["location", "log", "watchdog"]
