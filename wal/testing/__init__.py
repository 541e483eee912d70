"""What a service's own tests use: the pytest plugin of this distribution.

pytest loads `plugin.py` by its entry point; the fixtures there import the rest of the room, and of the log, only when a test asks for one.
`crash.py` runs a function in another process and ends that process with kill -9 at a chosen moment. `power.py` is a disk that remembers
what was not synced, so that a power cut can drop it. The project's own tests use the same disk. Nothing of the log imports this room.
"""
