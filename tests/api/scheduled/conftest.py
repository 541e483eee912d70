"""An open log at the location under test, and a watchdog for tests that hang."""

from tests.fixtures import log, watchdog

__all__ = ["log", "watchdog"]
