"""`python -m tests.servers etcd pulsar -- COMMAND…`: runs COMMAND beside real servers, whose addresses are in its environment.

Without a command the servers are installed into the cache and not started. A server that the environment already names (WAL_TEST_ETCD,
WAL_TEST_PULSAR with WAL_TEST_PULSAR_ADMIN, WAL_TEST_NATS) is used as it is. Exits with COMMAND's code, after stopping the servers that it
started.

A server's module has `install()`, and `started()`: a context manager that yields the variables to set.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tests.servers.cache import MissingServerError, say

SERVERS: Final = ("etcd", "pulsar", "nats")


def main(arguments: Sequence[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, command = arguments[:split], list(arguments[split + 1 :])
    unknown = [name for name in names if name not in SERVERS]
    if not names or unknown:
        print(f"usage: python -m tests.servers {{{','.join(SERVERS)}}}… [-- COMMAND…]", file=sys.stderr)
        return 2
    modules = [importlib.import_module(f"tests.servers.{name}") for name in names]
    try:
        if not command:
            for module in modules:
                module.install()
            return 0
        with contextlib.ExitStack() as servers:
            environment = dict(os.environ)
            for module in modules:
                variables = servers.enter_context(module.started())
                environment |= variables
                say(" ".join(f"{name}={value}" for name, value in variables.items()))
            return subprocess.run(command, env=environment, check=False).returncode
    except MissingServerError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
