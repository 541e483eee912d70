"""The tests of tests/accesser/test_reopening.py, on Pulsar."""

from tests.accesser.test_reopening import *  # noqa: F403
