"""Spark on the log: reading it as tables and streams, and writing it. Needs the extra `spark`: `pip install 'wal-runtime[spark]'`."""

from wal.spark.offsets import PChannelOffset, StreamOffset

__all__ = ["PChannelOffset", "StreamOffset"]
