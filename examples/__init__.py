"""Runnable example programs: each shows one use of the log, and the tests run all of them."""
