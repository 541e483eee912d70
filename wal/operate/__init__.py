"""Operating a log: what people and programs use who look at a log, keep it, copy it and run it.

`cli` is the command line, and `status` the page of a log; both show the rows of `inspect`. `metrics` counts for Prometheus. `backup` keeps
a journal in a store and restores it, and `copying` moves a log into another one. `processes` runs a log for the network: a server, or the
coordinators and nodes of a cluster.
"""
