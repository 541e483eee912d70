"""The tests of tests/accesser/test_scanner.py, on Pulsar."""

from tests.accesser.test_scanner import *  # noqa: F403
