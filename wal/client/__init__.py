"""The client: the engine of a log that a server on the network serves. Needs the extra `cluster`.

Appends become columns, many in one request, on the `Producer` stream of their pchannel; its `Outbox`, a pure table, says what is sent
next and what again after a lost connection. Reads get the frames that the writer wrote, and scanners run here, so a reader resumes
exactly, whichever server it is connected to. The `RemoteDirectory` knows the vchannels, `Nodes` which server has which pchannel;
`Supervision` owns every task. `blocking.py` is the same log for threads without an event loop.
"""
