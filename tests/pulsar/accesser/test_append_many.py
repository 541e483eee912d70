"""The tests of tests/accesser/test_append_many.py, on Pulsar."""

from tests.accesser.test_append_many import *  # noqa: F403
