"""What goes over the wire to etcd: the part of its API that is used here, generated from rpc.proto."""
