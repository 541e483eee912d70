"""The tests of tests/accesser/test_txn.py, on Pulsar."""

from tests.accesser.test_txn import *  # noqa: F403
