"""What an operator sees of a log: rows, and how they are made from an open log.

`rows.py` has the rows, which the command line prints and the status service serves: each is a frozen struct with one JSON form.
`builders.py` makes them from an open log through its public calls, in the process that writes it or beside it. `outside.py` adds what the
frames and the files of a log show to another process, such as counts of messages. Nothing here changes a log.
"""
