"""Message streams on a real Pulsar: the medium, its ids, restarts of the broker, forks and exits of the process."""
