"""Metrics of a log for Prometheus (the extra `metrics`).

`snapshot.py` takes the measurements of a log at one moment, on its loop: the counts that the log keeps anyway, its cursors and its
retention. `families.py` turns a snapshot into families of metrics: the fields of statistics declare their names and meanings
(`wal/read/figures.py`). `collector.py` is the collector for a registry of prometheus-client, and the server of `--metrics`. Nothing here is
on the path of an append: the log counts in plain numbers, and a scrape pays for the rest.
"""

from typing import TYPE_CHECKING, Any

from wal.runtime.installation import Needed

if TYPE_CHECKING:
    from wal.operate.metrics.collector import Collector, register

__all__ = ["Collector", "register"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports a public name at its first use: snapshots need no package, and a coordinator without metrics loads none."""
        if name not in __all__:
            raise AttributeError(f"module 'wal.operate.metrics' has no attribute {name!r}")
        with Needed("metrics need", "metrics"):
            from wal.operate.metrics import collector
        return getattr(collector, name)
