"""The messages to etcd and its answers: the part of its API that is used here, generated from rpc.proto."""
