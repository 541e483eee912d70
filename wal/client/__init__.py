"""The engine of a log that a server on the network serves: a client with the same calls. Needs the extra `cluster`.

Messages are sent as columns, many in one request, and read as the frames that the writer wrote. Scanners run here, so a reader resumes
exactly, whichever server it is connected to.

Files, from the bottom up:

* outbox:          the requests of one producer: which are sent next, and which are sent again after a lost connection: pure
* pauses:          the pauses between attempts to find a server: pure
* supervision:     the tasks that a client lives by, and what becomes of a defect in one of them
* seen:            the largest tick that this client has seen, and the counts of what it wrote and of its open transactions
* unknown:         the requests whose outcome is unknown, until their callers get the error
* vchannels:       the vchannels of the log as the server shows them
* withdrawals:     the requests whose callers wait no longer
* produce_stream:  a Produce stream that a server has answered, and what is sent on it
* producer:        the requests for one pchannel
* known_producers: what the pchannels remember of producers
* txn:             an open transaction; its bodies are kept here
* appends:         the writing calls
* cursors:         the cursors of the log
* broadcasts:      the calls of the log's broadcaster
* pages_ahead:     the pages that the server sends to a reader before the reader asks for them
* shared_calls:    the calls under way, for other callers that want the same answer
* remote_log:      the log of one pchannel, for its readers
* remote_pchannel: a pchannel for the scanners of this process, and the stream that says how far it reaches
* nodes:           which server has which pchannel, and the connections to these servers
* directory:       where the vchannels are, and the calls that create and drop them
* log:             the engine
* blocking:        a log for threads without an event loop
* blocking_log:    the log of one pchannel for such threads, with the next page prefetched
* blocking_cursors:  the cursors for such threads
* blocking_source: the source of the reads of `wal.bridge`
"""
