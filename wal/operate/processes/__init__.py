"""A cluster: coordinators of which one leads, and streaming nodes, over one log on Pulsar and one root in etcd.

Each is one process. `node.py` is a streaming node: a session, the pchannels that the leader gives it, and its services. `coordinator.py` is
a coordinator: a candidate that answers with the address of the leader, and the leader itself, which is `leading.py`. `opening.py` is what
both begin with: the record of the cluster, and the log and the settings that it names.
"""
