"""Operating a log: tools for people and programs that inspect a log, back it up, copy it and serve it.

`cli` is the command line, and `status` the page of a log; both show the rows of `inspect`. `metrics` counts for Prometheus. `backup` stores
backups of a journal and restores them, and `copying` moves a log into another one. `processes` serves a log on the network: a server, or
the coordinators and nodes of a cluster.
"""
