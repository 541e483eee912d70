"""The tests of tests/accesser/test_checkpoint.py, on Pulsar."""

from tests.accesser.test_checkpoint import *  # noqa: F403
