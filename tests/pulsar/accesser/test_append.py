"""The tests of tests/accesser/test_append.py, on Pulsar."""

from tests.accesser.test_append import *  # noqa: F403
