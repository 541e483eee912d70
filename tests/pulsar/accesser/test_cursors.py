"""The tests of tests/accesser/test_cursors.py, on Pulsar."""

from tests.accesser.test_cursors import *  # noqa: F403
