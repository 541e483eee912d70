"""The coordinator's half of a log: which pchannels, vchannels and channels exist, in which terms, and the broadcasts over all of them.

The `Coordinator` has the records. `VChannels` alone gives a name its incarnation, and calls the nodes where the actors begin and end.

The leader of a cluster has more: `Membership`, the nodes that live and how they are; the tables `assignments`, which node has which
pchannel in which term, and `plan`, what moves where; the `Assigner`, which carries that out by `NodeCalls`; and the halves of directory and
broadcaster that reach the nodes (`nodes`, `copies`). `wal/operate/processes/leading.py` puts them together, and `wal/serve/` offers them.
"""
