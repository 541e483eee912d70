"""The fixtures of tests of streams over a log: an open log at the location under test."""

from tests.accesser.conftest import log, watchdog

__all__ = ["log", "watchdog"]
