"""Reads with a pattern: their messages, the order, and where they continue."""
