"""The tests of tests/accesser/test_barriers.py, on Pulsar."""

from tests.accesser.test_barriers import *  # noqa: F403
