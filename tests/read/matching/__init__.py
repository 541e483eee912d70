"""Reads with a pattern: what is delivered, in which order, and from where they go on."""
