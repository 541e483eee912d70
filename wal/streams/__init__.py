"""Libraries beside the log, for services that come from Milvus: message streams, flow graphs, a queue, parameters and a watchdog.

`msgstream` sends packs of messages over Pulsar, RocksMQ, a log or memory. `flowgraph` runs nodes on one tick after the other. `rocksmq` has
channels and consumer groups on RocksDB. `params` holds the parameters of a process. `watchdog` restarts components that send no heartbeats.
"""
