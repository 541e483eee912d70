"""The coordinator's half of a log: which pchannels, vchannels and channels exist, in which terms, and the broadcasts over all of them.

The `Coordinator` has the records. `VChannels` alone gives a name its incarnation, and calls the nodes where the actors begin and end.
`LogService` serves all that to clients, and `Discovery` tells them which pchannels are on which node.

For a cluster of several nodes there are the two tables that its leader will act on: `assignments`, which node has which pchannel in which
term, and `plan`, what moves where. Nothing calls them yet.
"""
