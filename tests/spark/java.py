"""Checks whether Spark can run here: in CI it must."""

from __future__ import annotations

import os

import pytest

from wal.spark.local_session import why_no_session

__all__ = ["require_java"]


def require_java() -> None:
    """Skips the test, with a warning, if Spark cannot run; in CI that is a failure."""
    reason = why_no_session()
    if reason is None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI runs Spark's tests, and there is no Spark here: {reason}")
    pytest.skip(f"SPARK'S TESTS DO NOT RUN HERE: {reason}")
