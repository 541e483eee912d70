"""The tests of tests/accesser/test_read.py, on Pulsar."""

from tests.accesser.test_read import *  # noqa: F403
