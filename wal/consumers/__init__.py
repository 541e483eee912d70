"""Consumers: handlers that run on the messages of a log, with attempts, order, dead letters and a position that is saved with their output.

`consumer.py` is the object that callers hold: it starts, ends, and restarts with the cursor after another process had it. `session.py` is
one claim of the cursor: it reads, hands out, and commits ended attempts; `handlers.py` runs the handlers. `table.py` decides which bodies
may run, over all bodies in order (`sequence.py`, and `stretch.py` while nothing fails), and what is saved of them (`state.py`); these are
pure. `outputs.py` locates outputs and builds dead letters; `delivery.py` is one body as a handler gets it; `options.py` and `plan.py` are
the options.
"""
