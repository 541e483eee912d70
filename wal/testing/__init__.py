"""Tools for a service's own tests: the pytest plugin of this distribution.

pytest loads `plugin.py` by its entry point; the fixtures import the rest of this package, and the log, only when a test requests one.
`crash.py` runs a function in another process and ends that process with kill -9 at a chosen moment. `power.py` is a disk that records
unsynced changes, so that a power cut can drop them. The project's own tests use the same disk. Nothing of the log imports this package.
"""
