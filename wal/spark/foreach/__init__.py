"""A handler for the batches of a Spark stream: payloads are decoded, effects happen once, a cursor follows the query.

Files:

* bridge        foreach_batch: the order of the steps of one batch
* batch         the information that a handler gets about its batch
* ledger        the note in a database that makes an effect happen only once
* decoding      turns payloads into columns, by a schema or by the user's function
* offset_log    where a batch ends, as the query's checkpoint says
* query_cursor  the cursors that tell retention how far the query has progressed
"""

from wal.spark.foreach.batch import Batch
from wal.spark.foreach.bridge import ForeachBatch, foreach_batch
from wal.spark.foreach.decoding import decoded

__all__ = ["Batch", "ForeachBatch", "decoded", "foreach_batch"]
