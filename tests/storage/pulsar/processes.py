"""Processes that run one script at once, each with an input of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.docs.snippets import ROOT


def run_each(script: str, inputs: Sequence[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Starts a process for each input, which it reads as JSON from stdin; returns the status, stdout and stderr of each."""
    running: list[subprocess.Popen[str]] = []
    try:
        for given in inputs:
            process = subprocess.Popen(
                [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            running.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(given))
            process.stdin.close()
            process.stdin = None
        said = [process.communicate(timeout=60) for process in running]
        return [(process.returncode, *texts) for process, texts in zip(running, said, strict=True)]
    finally:
        for process in running:
            process.kill()
            process.wait()
