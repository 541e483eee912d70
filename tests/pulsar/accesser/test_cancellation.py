"""The tests of tests/accesser/test_cancellation.py, on Pulsar."""

from tests.accesser.test_cancellation import *  # noqa: F403
