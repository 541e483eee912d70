"""The fixtures of every test of the contract: a location on each backend, an open log there, and a watchdog for tests that hang."""

from tests.accesser.conftest import data, location, log, log4, watchdog

__all__ = ["data", "location", "log", "log4", "watchdog"]
