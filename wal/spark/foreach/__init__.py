"""From the batches of a Spark stream to a handler: payloads decoded, effects that happen once, a cursor that follows."""

from wal.spark.foreach.batch import Batch
from wal.spark.foreach.bridge import ForeachBatch, foreach_batch
from wal.spark.foreach.decoding import decoded

__all__ = ["Batch", "ForeachBatch", "decoded", "foreach_batch"]
