"""The rows that describe a log to its operator, and their construction from an open log.

`rows.py` has the rows, which the command line prints and the status service serves: each is a frozen struct with one JSON form.
`builders.py` builds them from an open log through its public calls, in the process that writes it or beside it. `outside.py` adds details
from the frames and the files of a log, such as counts of messages. Nothing here changes a log.
"""
