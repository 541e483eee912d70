"""The commands of `wal`, in one table: the name, the help in a line, and the function that adds the flags.

A module is imported only when its command is named, so `wal --help` stays fast: this file imports nothing of the log. `operates` selects
the exit status of an error of the log. The commands of an operator share one table of exit statuses (`EXIT_STATUS`); the processes that
serve, `wal cluster` and `wal mark-restored` have their own.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Final, NamedTuple

EXIT_FINDING: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_ERROR: Final = 4
EXIT_SIGNALLED: Final = 128
"""The exit status of a server that a signal stops before it serves is this plus the number of the signal, as in a shell."""
EXIT_STATUS: Final = """\
exit status:
  0  fine
  1  a finding: damage, a lag over the limit, or (--dry-run) something to change
  2  an argument is wrong, or a package is missing
  3  the log is locked by another process, or cannot be reached
  4  an error of the log"""


class Command(NamedTuple):
    """A command. `fill` is "module:function" of the function that adds its flags to its parser and sets `run`."""

    name: str
    group: str
    help: str
    fill: str
    operates: bool = True
    """Whether its errors use the statuses of `EXIT_STATUS`; otherwise 1, and 2 for a wrong argument."""

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Adds the flags of the command to its parser. Imports its module."""
        module, _, function = self.fill.partition(":")
        fill: Callable[[argparse.ArgumentParser], None] = getattr(importlib.import_module(module), function)
        fill(parser)


COMMANDS: Final = (
    Command("info", "look", "the version, location, writer, terms, sizes and rates of a log", "wal.operate.cli.look:fill_info"),
    Command("ls", "look", "the vchannels, with their messages and bytes", "wal.operate.cli.look:fill_ls"),
    Command("tail", "look", "the last messages of vchannels, and what follows", "wal.operate.cli.tail:fill_tail"),
    Command("cat", "look", "all messages of vchannels, also into Parquet, CSV or JSON lines", "wal.operate.cli.tail:fill_cat"),
    Command("peek", "look", "the next messages of a cursor, without moving it", "wal.operate.cli.tail:fill_peek"),
    Command("dump", "look", "the frames of a log as they are stored", "wal.operate.cli.dump:fill_dump"),
    Command("top", "look", "live rates, latencies and lags", "wal.operate.cli.look:fill_top"),
    Command("settings", "look", "the settings, and where each comes from", "wal.operate.cli.look:fill_settings"),
    Command("health", "look", "whether a log can be used, for probes", "wal.operate.cli.look:fill_health"),
    Command("completion", "look", "a script with which a shell completes commands", "wal.operate.cli.completion:fill_completion"),
    Command("verify", "check", "every checksum of a journal", "wal.operate.cli.check:fill_verify"),
    Command("cursors", "check", "the cursors and their lag", "wal.operate.cli.look:fill_cursors"),
    Command("consumers", "check", "the consumers that run, their counts and their lag", "wal.operate.cli.look:fill_consumers"),
    Command("broadcasts", "check", "unfinished broadcasts, and which vchannels are missing", "wal.operate.cli.look:fill_broadcasts"),
    Command("retention", "check", "what each pchannel holds, and for whom", "wal.operate.cli.look:fill_retention"),
    Command("scheduled", "check", "the messages that wait for their time; cancels one", "wal.operate.cli.queues:fill_scheduled"),
    Command("create", "do", "creates vchannels", "wal.operate.cli.queues:fill_create"),
    Command("drop", "do", "drops vchannels with their messages", "wal.operate.cli.queues:fill_drop"),
    Command("append", "do", "appends the standard input to a vchannel", "wal.operate.cli.change:fill_append"),
    Command("cursor", "do", "moves or removes a cursor", "wal.operate.cli.change:fill_cursor"),
    Command("redrive", "do", "appends dead letters to their original vchannels again", "wal.operate.cli.queues:fill_redrive"),
    Command("truncate", "do", "drops the oldest messages", "wal.operate.cli.change:fill_truncate"),
    Command("broadcast", "do", "aborts a broadcast that cannot finish", "wal.operate.cli.change:fill_broadcast"),
    Command("bench", "do", "measures durable appends on a disk, beside SQLite", "wal.operate.cli.bench:fill_bench"),
    Command("repair", "do", "repairs a damaged journal as far as that loses no message", "wal.operate.cli.check:fill_repair"),
    Command("backup", "do", "copies a journal while it is in use", "wal.operate.cli.backup:fill_backup"),
    Command("restore", "do", "makes a journal of a backup", "wal.operate.cli.backup:fill_restore"),
    Command("copy", "do", "copies a log into an empty place, also between a journal and Pulsar", "wal.operate.cli.copy:fill_copy"),
    Command("serve", "serve", "serves the status page of a log", "wal.operate.cli.serve_status:fill"),
    Command("standalone", "serve", "serves a log to clients", "wal.operate.cli.standalone:fill", operates=False),
    Command("work", "serve", "handles the messages of vchannels with a function", "wal.operate.cli.work:fill"),
    Command("coordinator", "serve", "coordinates a cluster", "wal.operate.cli.cluster:fill_coordinator", operates=False),
    Command("node", "serve", "serves pchannels of a cluster", "wal.operate.cli.cluster:fill_node", operates=False),
    Command("cluster", "serve", "shows a cluster, and gives it orders", "wal.operate.cli.cluster:fill_cluster", operates=False),
    Command("mark-restored", "serve", "notes that a journal was restored from a copy", "wal.operate.cli.restored:fill", operates=False),
)
"""Every command, in the order of the help."""
