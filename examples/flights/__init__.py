"""The demo: every flight that left New York in 2013, through a log whose writer is killed in the middle."""
