"""Tests of wal/inspect/: the rows that an operator sees."""
