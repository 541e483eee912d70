"""The check of the installation: the packages next to this one, and the remedy for a missing one.

`import wal` runs this file, so its imports at the top are modules that every Python process has loaded already.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec

DISTRIBUTION = "wal-runtime"
"""The name of this distribution. The `__init__` of each of our packages repeats it as `__distribution__`."""
SIBLINGS = ("actors", "broadcaster")


def install_hint(*extras: str) -> str:
    """Returns the command that installs these extras: `pip install '/path/to/clone[arrow]'`.

    The command names the source of this installation, since only an index finds the package by its name.
    """
    return f"pip install '{_source()}[{','.join(extras)}]'"


class Needed:
    """Imports inside this context need an extra. Without one of its packages they raise an ImportError that begins with `what`, and names
    the package and the command that installs it.
    """

    def __init__(self, what: str, extra: str) -> None:
        self._what = what
        self._extra = extra

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            text = f"{self._what} {missing_package(error)}, which is not installed: {install_hint(self._extra)}"
            raise ImportError(text, name=error.name) from error


def missing_package(error: ImportError) -> str:
    """Returns pip's name for the package of a module that could not be imported: protobuf for `google.protobuf`."""
    module = (error.name or "").partition(".")[0]
    return _PACKAGES.get(module, module)


_PACKAGES = {
    "backports": "backports.zstd",
    "compression": "compression.zstd",
    "google": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "pulsar": "pulsar-client",
    "yaml": "PyYAML",
}
"""Packages whose modules have other names."""


def reinstall_hint() -> str:
    """Returns the command that reinstalls this distribution, whatever happened to its files."""
    return f"pip install --force-reinstall --no-deps '{_source()}'"


def check_siblings() -> None:
    """Raises an ImportError if `actors` or `broadcaster` is missing or belongs to another distribution, with the remedy.

    Other distributions install top-level packages of the same names; their files then replace ours, or hide them. The check looks
    for the packages without importing them, and takes a fifth of a millisecond.
    """
    parent = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    for name in SIBLINGS:
        spec = _find(name)
        if spec is None or spec.origin is None:
            raise ImportError(
                f"the package {name!r} of {DISTRIBUTION} is missing beside {parent}/wal: another distribution that installs a package "
                f"of this name has perhaps replaced it and was uninstalled; install {DISTRIBUTION} again: {reinstall_hint()}",
                name=name,
            )
        if not _same(os.path.dirname(spec.origin), os.path.join(parent, name)) or not _is_ours(spec, spec.origin):
            raise ImportError(
                f"the package {name!r} at {spec.origin} does not belong to the {DISTRIBUTION} at {parent}{_owners(name)}",
                name=name,
                path=spec.origin,
            )


def _source() -> str:
    """Returns the source for pip to install this distribution from: the clone that holds this code, else its origin, else its name."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    here = Path(__file__).resolve().parents[2]
    if (here / "pyproject.toml").is_file():
        return str(here)
    try:
        origin = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return DISTRIBUTION
    url = urlsplit(json.loads(origin)["url"] if origin else "")
    source = Path(unquote(url.path))
    return str(source) if url.scheme == "file" and source.exists() else DISTRIBUTION


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a loaded module of this name was not imported in the usual way
        return None


def _same(path: str, expected: str) -> bool:
    try:
        return path == expected or os.path.samefile(path, expected)
    except OSError:  # an archive contains no files
        return False


def _is_ours(spec: ModuleSpec, origin: str) -> bool:
    read = getattr(spec.loader, "get_data", None)
    try:
        return read is None or DISTRIBUTION.encode() in read(origin)
    except OSError:  # a program that was packed into one file (PyInstaller) has the modules, but not their files
        return True


def _owners(name: str) -> str:
    """Returns the names of the distributions that own the package, and the remedy."""
    from importlib.metadata import packages_distributions

    others = sorted(set(packages_distributions().get(name, ())) - {DISTRIBUTION})
    if not others:
        return f": it hides the package that {DISTRIBUTION} needs. Rename it, or take its directory off the path (sys.path, PYTHONPATH)"
    listed = " ".join(others)
    return (
        f", but to the distribution {listed}, which installs a package of the same name. Uninstall it and install {DISTRIBUTION} "
        f"again (pip uninstall {listed}; {reinstall_hint()}), or give each a virtual environment of its own"
    )
