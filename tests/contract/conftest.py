"""The fixtures of every test of the contract: an open log at the location under test, and a watchdog for tests that hang."""

from tests.accesser.conftest import data, log, log4, watchdog

__all__ = ["data", "log", "log4", "watchdog"]
