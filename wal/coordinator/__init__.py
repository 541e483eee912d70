"""The coordinator's half of a log: the existing pchannels with their terms, the vchannels and channels, and the broadcasts over all of
them.

The `Coordinator` has the records. Only `VChannels` assigns an incarnation to a name, and it calls the nodes where the actors begin and end.

In a cluster, the leader's `Membership` has the live nodes and their health, its table `assignments` has the node and the term of each
pchannel, and `plan` decides which pchannels move. The `Assigner` executes the plan by `NodeCalls`. `nodes` and `copies` are the halves
of directory and broadcaster that call the nodes. `wal/operate/processes/leading.py` connects these parts, and `wal/serve/` serves them.
"""
