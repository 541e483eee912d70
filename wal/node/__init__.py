"""The node's half of a log: the pchannels that are here, each in its term under a lease, and the services that clients reach them by.

`StreamingNode` has the parts. `Hosting` opens and closes single pchannels; `Routes` lead from names of vchannels that exist to their
actors, and ask the coordinator's half before they refuse a name; appends, cursors, retention and the copies of broadcasts stand on both.
The services ask `Hosted` for a pchannel in its term before they do anything: `produce.py` executes one stream of appends, `frame_calls.py`
and `consume.py` one stream of reads, `pchannel_service.py` the calls that belong to one pchannel. `Bounded` accounts for what clients
have under way.
"""
