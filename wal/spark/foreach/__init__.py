"""From the batches of a Spark stream to a handler: payloads decoded, effects that happen once, a cursor that follows.

Files:

* Bridge (the order of one batch); batch (what a handler is told), ledger (effects once); decoding (the plan),
  payloads (in the workers); offset_log (where a batch ends), query_cursor (what the log may let go of)
* bridge: foreach_batch: from batches of a stream to a handler of the user's, and back: when the handler is done,
  the log may let go of them
"""

from wal.spark.foreach.batch import Batch
from wal.spark.foreach.bridge import ForeachBatch, foreach_batch
from wal.spark.foreach.decoding import decoded

__all__ = ["Batch", "ForeachBatch", "decoded", "foreach_batch"]
