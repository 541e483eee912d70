"""The packages that are installed beside this one, and whether they are still ours.

Other distributions install top-level packages of the same names; the files of the one then replace those of the other, or hide them.
Owns the check, which every import of `wal` makes: it looks for the packages and imports none of them, in a fifth of a millisecond.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec

__all__ = ["check_siblings"]

DISTRIBUTION = "wal-runtime"
"""What stands in the `__init__` of each of our packages, as `__distribution__`."""
SIBLINGS = ("actors", "broadcaster")


def check_siblings() -> None:
    """ImportError when `actors` or `broadcaster` is missing, or belongs to somebody else; it names whose it is, and the remedy."""
    parent = os.path.dirname(os.path.dirname(__file__))
    for name in SIBLINGS:
        spec = _find(name)
        if spec is None or spec.origin is None:
            from wal.extras import reinstall_hint

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


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module of this name is there that was not imported in the usual way
        return None


def _same(found: str, expected: str) -> bool:
    try:
        return found == expected or os.path.samefile(found, expected)
    except OSError:  # inside of an archive there are no files
        return False


def _is_ours(spec: ModuleSpec, origin: str) -> bool:
    read = getattr(spec.loader, "get_data", None)
    return read is None or DISTRIBUTION.encode() in read(origin)


def _owners(name: str) -> str:
    """Whose it is, and what is to be done."""
    from importlib.metadata import packages_distributions

    from wal.extras import reinstall_hint

    others = sorted(set(packages_distributions().get(name, ())) - {DISTRIBUTION})
    if not others:
        return f": it hides the package that {DISTRIBUTION} needs. Rename it, or take its directory off the path (sys.path, PYTHONPATH)"
    listed = " ".join(others)
    return (
        f", but to the distribution {listed}, which installs a package of the same name. Uninstall it and install {DISTRIBUTION} "
        f"again (pip uninstall {listed}; {reinstall_hint()}), or give each a virtual environment of its own"
    )
