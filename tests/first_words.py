"""Reports a test's failure when it happens, not only at the end, so that a run that is cut short has reported what it knew.

It does so only in CI, with at most the last LINES lines of each report, which name the expected and the actual value.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

LINES: Final = 40


class FirstWords:
    """Writes to the terminal after the line of dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        terminal.ensure_newline()
        terminal.write_line(f"FAILED at {report.when}: {report.nodeid}", red=True)
        for line in report.longreprtext.splitlines()[-LINES:]:
            terminal.write_line(f"    {line}")


def pytest_configure(config: pytest.Config) -> None:
    # A worker process has no terminal: its reports reach the first process, which has one.
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FirstWords(config), "first-words")
