"""An open log at the location under test, and a watchdog for tests that hang."""

from tests.fixtures import data, log, log4, watchdog

__all__ = ["data", "log", "log4", "watchdog"]
