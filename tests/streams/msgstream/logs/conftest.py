"""The fixtures of tests of streams over a log: an open log at the location under test."""

from tests.fixtures import log, watchdog

__all__ = ["log", "watchdog"]
