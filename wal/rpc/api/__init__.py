"""The messages of the protocol: .proto files, and the code that `make protos` generates from them.

* streaming  Milvus' protocol, milvus.proto.streaming, with additions of ours
* append     appends and transactions on a Produce stream, and their outcomes
* result     the results of appends
* frames     frames and the tail, as a remote pchannel asks for them and receives them
* cursors    cursors, and their saves by transactions
* pchannel   pchannels, positions, the end of a log, vchannels
* error      errors, and the status of a call
* component  the state of a component
* cluster    LogService and PChannelService: the calls that Milvus' protocol does not have, and the messages of LogService
* nodes      NodeService and ClusterService: the calls between the servers of a cluster, and those of its operator
* requests   the messages of Submit: the requests to a log, and the answers
"""
