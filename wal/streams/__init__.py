"""What stands beside the log, for services that come from Milvus: message streams, graphs on them, a queue, parameters, a watchdog.

`msgstream` sends packs of messages over Pulsar, RocksMQ, a log or memory, and `flowgraph` runs nodes on one tick after the other. `rocksmq`
has channels and consumer groups on RocksDB, `params` the parameters of a process, and `watchdog` restarts components that send no
heartbeats.
"""
