"""The engines that serve an open log, and the seam through which the accesser calls them.

Files:

* base:        the seam between the accesser and an engine, in two halves: reading and writing
* bodies:      the messages of a transaction that are known at once, checked, in their stored form
* bulk:        collects the results of the pieces of an `append_bulk`
* checks:      the checks of messages and keys that every engine makes before it sends anything
* factory:     the choice of the engine for a location
* hosting:     one pchannel in a given term: opened, recovered, run and closed
* metadata:    opening the KV that a setting names
* local:       the engine of a log that this process writes
* read_only:   the engine of a log that another process writes
* remote:      the engine of a log that a server on the network serves
"""
