"""The idempotency keys of a pchannel: their kinds, the remembered ones, and their bytes. Pure.

The `IdempotencyTable` has the first result of each key. Plain keys belong to the scope of their vchannels and are forgotten by count and
age; a producer's last sequence is kept for good, with the gaps that failed sequences leave.
"""
