"""The processes that serve a log on the network: a server of its own log, or the coordinators and streaming nodes of a cluster.

`standalone.py` serves the open log of this process: it mounts the services of both halves on one port, with the checks of tokens, logs and
bounds before them. A cluster has one log on Pulsar and one root in etcd; `opening.py` opens the log in the cluster's record. `node.py` is a
streaming node, with a session, its assigned pchannels, and its services. `coordinator.py` is a coordinator: a candidate that answers with
the address of the leader. `leading.py` is the work of the leader.
"""
