"""The tests of tests/accesser/test_vchannels.py, on Pulsar."""

from tests.accesser.test_vchannels import *  # noqa: F403
