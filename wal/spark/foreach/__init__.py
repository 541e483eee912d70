"""A handler for the batches of a Spark stream: payloads are decoded, effects happen once, a cursor follows the query.

Files:

* bridge        foreach_batch: the order of the steps of one batch
* batch         what a handler is told about its batch
* ledger        the note in a database that makes an effect happen once
* decoding      payloads become columns, by a schema or by a function of the user's
* offset_log    where a batch ends, as the query's checkpoint says
* query_cursor  the cursors that tell retention how far the query is done
"""

from wal.spark.foreach.batch import Batch
from wal.spark.foreach.bridge import ForeachBatch, foreach_batch
from wal.spark.foreach.decoding import decoded

__all__ = ["Batch", "ForeachBatch", "decoded", "foreach_batch"]
