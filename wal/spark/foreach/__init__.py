"""A handler for the batches of a Spark stream: payloads are decoded, effects happen once, a cursor follows the query.

`foreach_batch` has the order of the steps. The handler gets its `Batch`, whose ledger makes an effect in a database happen once. Then the
query's cursor follows the offset in the committed checkpoint, so that retention keeps the events that the query still needs.
"""

from wal.spark.foreach.batch import Batch
from wal.spark.foreach.bridge import ForeachBatch, foreach_batch
from wal.spark.foreach.decoding import decoded

__all__ = ["Batch", "ForeachBatch", "decoded", "foreach_batch"]
