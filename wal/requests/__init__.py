"""Requests to a log: one value for each, the same in the process, in a client, on the wire and at the node. Pure.

`request.py` has what all have in common: the class attributes by which clients and servers judge a request whose name they do not know.
The other files have the requests of one subject, each with its checks and the type of its answer. docs/explanation/requests.md shows the
way of a request.
"""
