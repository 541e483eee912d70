"""The idempotency keys of a pchannel: what they are, which are remembered, and their bytes. Pure.

The `IdempotencyTable` knows the first result of each key. Plain keys belong to the scope of their vchannels and are forgotten by count
and age; a producer's last sequence is kept for good, with the gaps that failed sequences leave.
"""
