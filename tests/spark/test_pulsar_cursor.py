"""The cursor of a query and its lag on a real Pulsar, with the metadata in a real etcd. Without a JVM."""

from __future__ import annotations

from tests.spark.cursor_suite import CursorSuite


class TestCursor(CursorSuite):
    pass
