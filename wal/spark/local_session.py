"""A Spark session on this host, for tests, examples and the demo; and the requirements of a host.

Owns the settings for a small job on one host, which are not those of a cluster, and the required versions of pyspark and Java. It never
stops a session; its creator does. On a cluster create the session as Spark documents it: this log needs only the package on the executors.
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

from wal.api.arrow import load_pyarrow
from wal.errors import InvalidArgumentError
from wal.runtime.installation import install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PYSPARK_MIN: Final = (4, 2, 1)
"""The first version whose Python sources have working row limits, AvailableNow and a reported end."""
JAVA_MIN: Final = 17
"""The oldest Java that Spark 4 runs on (its documentation, "Downloading")."""


def session(name: str = "wal", *, master: str = "local[2]", settings: Mapping[str, str | int | bool] | None = None) -> SparkSession:
    """Returns the session of this process, or creates it: without a UI, on loopback, with two shuffle partitions, pushed filters and this
    Python for its workers.

    `settings` are Spark's own, by their names, and take precedence over these. An existing session is returned; its changeable settings are
    updated. Raises ImportError without pyspark or pyarrow, InvalidArgumentError, with the reason, when this host cannot run Spark.
    """
    require_pyspark()
    load_pyarrow()
    if (reason := why_no_session()) is not None:
        raise InvalidArgumentError(f"no Spark session can be created here: {reason}")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _export_this_package()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


def why_no_session() -> str | None:
    """Returns the first missing requirement of a session on this host, with the remedy; None if all are met."""
    try:
        require_pyspark()
        load_pyarrow()
    except ImportError as error:
        return str(error)
    java = _java()
    if java is None:
        return f"no Java: install {JAVA_MIN} or newer, and put it on PATH or name it by JAVA_HOME"
    version = _java_version(java)
    if version is None:
        return f"{java} does not tell its version: put a Java of {JAVA_MIN} or newer on PATH or name it by JAVA_HOME"
    if version < JAVA_MIN:
        return f"{java} is Java {version}: install {JAVA_MIN} or newer, and put it on PATH or name it by JAVA_HOME"
    return None


@cache
def require_pyspark() -> None:
    """Raises an ImportError with the remedy unless pyspark is installed and new enough."""
    floor = ".".join(map(str, PYSPARK_MIN))
    try:
        from pyspark import __version__ as version
    except ImportError as error:
        raise ImportError(
            f"this needs pyspark {floor} or newer, which is not installed: {install_hint('spark')}", name="pyspark"
        ) from error
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if numbers < PYSPARK_MIN:
        raise ImportError(f"pyspark {version} is too old: the format 'wal' needs {floor} or newer: {install_hint('spark')}", name="pyspark")


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:  # then Spark's own scripts search only there
        return shutil.which("java", path=str(Path(home) / "bin"))
    return shutil.which("java")


def _java_version(java: str) -> int | None:
    """Returns 17 for `openjdk version "17.0.15"`, 8 for `java version "1.8.0_292"`."""
    try:
        version_text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(match[1]) if match else None


def _export_this_package() -> None:
    """Makes workers import this same package, also from a checkout that is not installed."""
    root = str(Path(__file__).parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",  # of processes that the master local-cluster starts
    "spark.sql.python.filterPushdown.enabled": True,
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}
"""These JVM options make a session of a few seconds start faster; a job of hours needs others."""
