"""The tests of tests/accesser/test_resume.py, on Pulsar."""

from tests.accesser.test_resume import *  # noqa: F403
