"""The tests of tests/accesser/test_idempotency.py, on Pulsar."""

from tests.accesser.test_idempotency import *  # noqa: F403
