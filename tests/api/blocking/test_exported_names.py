"""The names that `wal.bridge` exports, and the effects that its import must not have."""

import wal.bridge
from tests.processes import run_python


def test_exported_names() -> None:
    assert wal.bridge.__all__ == [
        "BlockingBroadcast",
        "BlockingConsumer",
        "BlockingMessageHandler",
        "BlockingOpening",
        "BlockingScanner",
        "BlockingTxn",
        "BlockingWAL",
        "Iteration",
        "RecordBatches",
        "blocking",
        "iterate",
        "record_batches",
    ]
    assert all(hasattr(wal.bridge, name) for name in wal.bridge.__all__)


def test_importing_the_bridge_imports_little() -> None:
    code = (
        "import sys, threading, wal; assert 'wal.bridge' not in sys.modules; import wal.bridge; "
        "assert 'pyarrow' not in sys.modules and 'numpy' not in sys.modules; assert threading.active_count() == 1"
    )
    run_python("-c", code, fresh=True)
