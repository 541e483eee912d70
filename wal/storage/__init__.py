"""Backends store frames. A backend knows nothing above them.

Files:

* base:      the interface of every backend: LogBackend, PChannelLog, ReadableLog, and the values that they return
* journal/:  segment files in a directory, the default
* memory/:   logs in the memory of this process
* pulsar/:   topics of a Pulsar namespace
"""
