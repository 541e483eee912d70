"""A cluster of real processes over a real etcd and a real Pulsar: coordinators, nodes, clients, and their failures."""
