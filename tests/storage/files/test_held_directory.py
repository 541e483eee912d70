"""HeldDirectory: which of several lost names the error names."""

import os
import threading
from pathlib import Path

import pytest

from wal.errors import StorageError
from wal.storage.files.held_directory import HeldDirectory


@pytest.mark.parametrize("attempt", range(20))
def test_directory_renamed_during_the_comparison_is_named(attempt: int, tmp_path: Path) -> None:
    outside = tmp_path / "shop"
    inside = outside / "p0"
    inside.mkdir(parents=True)
    outer = HeldDirectory(outside)
    inner = HeldDirectory(inside, within=outer)
    files = [(inside / str(n)).open("w") for n in range(5)]
    for file in files:
        inner.watch(Path(file.name), os.fstat(file.fileno()))
    started = threading.Event()
    raised = list[StorageError]()

    def compare() -> None:
        try:
            while True:
                inner.check()
                started.set()
        except StorageError as error:
            raised.append(error)

    thread = threading.Thread(target=compare)
    thread.start()
    started.wait()
    os.rename(outside, tmp_path / "moved")
    thread.join()
    with pytest.raises(StorageError, match=f"the directory {outside} was removed"):
        inner.check()
    assert f"the directory {outside} was removed" in str(raised[0])
    for file in files:
        file.close()
    inner.close()
    outer.close()
