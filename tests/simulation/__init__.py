"""A simulation of the whole log: coordinators, nodes and clients of a cluster in one process, on a virtual clock, with faults from a seed.

`loop.py` is the event loop: it has the clock, and runs the callbacks of each simulated process, which may stand still or be killed.
`network.py` carries messages between processes, `grpc_channel.py` and `grpc_server.py` are gRPC over it, `etcd.py` and `broker.py` the two
servers that a cluster needs. `environment.py` puts them where the product imports the real ones; all else is the product's own code.
`world.py` is a cluster, `faults.py` what happens to it, `workload.py` what its clients do, `invariants.py` what holds at every step, and
`checker.py` what holds of the history at the end; `test_incidents.py` plays what went wrong elsewhere, and `test_defects.py` breaks the
product on purpose. `scale.py` counts what the loss of one of many nodes costs, `conformance.py` runs the contracts of etcd and of logs
over the stand-ins. `run.py` is one run of one seed, `apart.py` gives it a process of its own, and `python -m tests.simulation` is the
command line.
"""
