"""The tests of tests/accesser/test_broadcast.py, on Pulsar."""

from tests.accesser.test_broadcast import *  # noqa: F403
