"""The processes that serve a log on the network: a server of its own log, or the coordinators and streaming nodes of a cluster.

`standalone.py` serves the open log of this process: it mounts the services of both halves on one port, behind the checks of tokens, logs
and bounds. A cluster has one log on Pulsar and one root in etcd; `opening.py` opens what its record names. `node.py` is a streaming node,
with a session, the pchannels that the leader gives it, and its services. `coordinator.py` is a coordinator, a candidate that answers with
the address of the leader; what the leader does is in `leading.py`.
"""
