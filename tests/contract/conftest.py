"""What every test of the contract gets: a location on each backend, a log that is open there, and an end to what hangs."""

from tests.accesser.conftest import data, location, log, log4, watchdog

__all__ = ["data", "location", "log", "log4", "watchdog"]
