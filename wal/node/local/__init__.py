"""The local log: the engine of a log that this process writes, or reads while another process writes it.

A `LocalLog` composes a coordinator and a node over one `Storage`, and owns the order in which they are opened and closed; what a step
opened, its `Undo` releases when a later one fails. A `ReadOnlyLog` is the reading half over the files or topics of another writer.
"""
