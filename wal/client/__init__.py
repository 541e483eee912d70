"""The client: the engine of a log that a server on the network serves. Needs the extra `cluster`.

Appends become columns, many in one request, on the `Producer` stream of their pchannel; its `Outbox`, a pure table, decides which requests
are sent next, and which again after a lost connection. Reads get the frames that the writer wrote, and scanners run here, so a reader
resumes exactly, whichever server it is connected to. The `RemoteDirectory` has the vchannels, `Nodes` the server of each pchannel;
`Supervision` owns every task. `blocking.py` is the same log for threads without an event loop.
"""
