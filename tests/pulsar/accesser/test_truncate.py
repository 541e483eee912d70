"""The tests of tests/accesser/test_truncate.py, on Pulsar."""

from tests.accesser.test_truncate import *  # noqa: F403
