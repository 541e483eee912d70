"""Bad input for a server over the network: 1,000 mutated requests, 10,000 in a soak.

* mutations:      changes a serialized message, or the fields of one
* corpus:         a valid request for every call that a server has
* exchanges:      sends one request or one stream, whatever it is, and judges the answer
* neighbour:      a well-behaved client beside it, which must not notice anything
* test_bad_input: the test, and the few cases that are below gRPC
"""
