"""A Spark session of this host, for tests, examples and the demo; and why there can be none.

Owns: the settings that a small job on one host wants, which are not those of a cluster. It never stops a session: who made it does.
On a cluster make the session as its documentation says; all that this log needs there is the package on the executors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wal.bridge.arrow import load_pyarrow
from wal.errors import InvalidArgumentError
from wal.installation import install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PYSPARK_MIN", "require_pyspark", "session", "why_no_session"]

PYSPARK_MIN: Final = (4, 2, 1)
JAVA_MIN: Final = 17
"""What Spark 4 runs on (its documentation, "Downloading")."""


def session(
    name: str = "wal", *, master: str = "local[2]", settings: Mapping[str, str | int | bool] | None = None
) -> SparkSession:
    """The session of this process, made if there is none: without a UI, on loopback, with two shuffle partitions and this Python
    for its workers.

    `settings` are Spark's own, by their names, over these. A session that is there already is given back with only those of them
    changed that can be. InvalidArgumentError when this host cannot run Spark; it says why.
    """
    if (reason := why_no_session()) is not None:
        raise InvalidArgumentError(f"no Spark session can be made here: {reason}")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _hand_on_this_package()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


def why_no_session() -> str | None:
    """What this host lacks for a session, and the remedy; None when it has everything."""
    try:
        require_pyspark()
        load_pyarrow()
    except ImportError as error:
        return str(error)
    java = _java()
    if java is None:
        return f"there is no Java: install {JAVA_MIN} or newer, and put it on PATH or name it by JAVA_HOME"
    version = _java_version(java)
    if version is None:
        return f"{java} does not say its version: put a Java of {JAVA_MIN} or newer on PATH or name it by JAVA_HOME"
    if version < JAVA_MIN:
        return f"{java} is Java {version}: install {JAVA_MIN} or newer, and put it on PATH or name it by JAVA_HOME"
    return None


@cache
def require_pyspark() -> None:
    """Returns if pyspark is there and new enough; an ImportError that says what to install if not."""
    floor = ".".join(map(str, PYSPARK_MIN))
    try:
        from pyspark import __version__ as found
    except ImportError as error:
        raise ImportError(
            f"this needs pyspark {floor} or newer, which is not installed: {install_hint('spark')}",
            name="pyspark",
        ) from error
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if numbers < PYSPARK_MIN:
        raise ImportError(
            f"pyspark {found} is too old: the format 'wal' needs {floor} or newer: {install_hint('spark')}",
            name="pyspark",
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:  # Spark's own scripts look there, and nowhere else then
        return shutil.which("java", path=str(Path(home) / "bin"))
    return shutil.which("java")


def _java_version(java: str) -> int | None:
    """17 for `openjdk version "17.0.15"`, 8 for `java version "1.8.0_292"`."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _hand_on_this_package() -> None:
    """Workers import this very package, also from a checkout that is not installed."""
    root = str(Path(__file__).parents[2])
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *known])


_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}
"""The options of the JVM make a session of a few seconds start sooner; a job of hours wants others."""
