"""The status page of a log, and its JSON for programs (the extra `status`).

`app.py` is the application: the page, metrics, health, and the rows of `wal/operate/inspect` as JSON. `access.py` checks requests: on
loopback any client may read, elsewhere a holder of the token, and actions always need the token. `actions.py` has the few calls that change
a log. `server.py` serves the application on the loop of the log, and publishes its address beside the log. `assets/` is the page itself,
which loads nothing from other sites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wal.operate.status.server import StatusServer, load_app

if TYPE_CHECKING:
    from wal.operate.status.app import status_app

__all__ = ["StatusServer", "status_app"]


def __getattr__(name: str) -> Any:
    if name == "status_app":
        return load_app().status_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
