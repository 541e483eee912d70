"""Events: the rules of indices and flags, over the columns of a frame.

Every index below the header's count belongs to exactly one event: a record of a vchannel or of the pchannel, a copy of a broadcast, or a
commit, whose rows share one index over the runs of its transaction. Within a run indices ascend, and a body is followed by a body or by its
commit. Pure functions; a frame that breaks a rule is damaged, even if its CRC is right.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import compress, islice, pairwise
from operator import ge
from typing import Final

from wal.errors import CorruptionError, FormatError
from wal.frame.layout import FLAG_BODY, FLAG_COMMIT, FLAG_COPY, FLAGS_KNOWN, RunKind


def check_events(
    kinds: bytes, counts: Sequence[int], starts: Sequence[int], flags: bytes | None, indices: Sequence[int] | None, events: int
) -> dict[int, int]:
    """Checks the rules and returns the index of each COPY run, by ordinal.

    `counts` are as stored (for a COPY run, the ordinal of its SHARED run); the rows of run i are [starts[i], starts[i + 1]). Raises
    CorruptionError for a broken rule, FormatError for a flag that is unknown to this version.
    """
    numbers = range(starts[-1]) if indices is None else indices
    if flags is None and not kinds.strip(_VCHANNEL):
        _check_plain(starts, indices, events)
        return {}
    copies = _check_flags(kinds, counts, starts, flags, numbers)
    _check_mixed(kinds, starts, flags, numbers, copies, events)
    return copies


def _check_plain(starts: Sequence[int], indices: Sequence[int] | None, events: int) -> None:
    """Checks a frame of plain messages only, in which each row is an event."""
    if starts[-1] != events:
        raise inconsistent(f"{starts[-1]} records have {events} indices", "one each")
    if indices is not None:
        if _LONG_RUN * len(starts) > events or not _ascend(starts, indices):
            _check_ascending(indices, set(starts))
        if sorted(indices) != (_COUNTING[:events] if events <= len(_COUNTING) else list(range(events))):
            raise inconsistent("two records share an index", f"each below {events} once")


def _ascend(starts: Sequence[int], indices: Sequence[int]) -> bool:
    """Returns whether the indices of each run ascend, or are equal. It sorts run by run, which is fastest for few long runs."""
    runs = [list(indices[start:end]) for start, end in pairwise(starts)]
    return all(run == sorted(run) for run in runs)


def _check_flags(kinds: bytes, counts: Sequence[int], starts: Sequence[int], flags: bytes | None, numbers: Sequence[int]) -> dict[int, int]:
    """Checks that flags are only where allowed and that copies name their payload; returns the index of each COPY run."""
    if flags is None:
        if _SHARED in kinds or _COPY in kinds:
            raise inconsistent("the payload of a broadcast is not flagged as one", f"flag {FLAG_COPY}")
        return {}
    _check_known(flags)
    copies: dict[int, int] = {}
    following: dict[int, int] = {}
    for ordinal, (kind, (start, end)) in enumerate(zip(kinds, pairwise(starts), strict=True)):
        own = flags[start:end]
        if kind == RunKind.COPY:
            shared = counts[ordinal]
            if shared >= ordinal or kinds[shared] != RunKind.SHARED:
                raise inconsistent(f"copy run {ordinal} names run {shared}", "a SHARED run before it")
            copies[ordinal] = index = following.get(shared, numbers[starts[shared]])
            following[shared] = index + 1
        elif kind == RunKind.SHARED:
            if own != _COPY_FLAG:
                raise inconsistent(f"shared run {ordinal} has {len(own)} records", "one, flagged as a copy")
        elif kind != RunKind.VCHANNEL:
            if any(own):
                raise inconsistent(f"run {ordinal} of kind {kind} has flags", "none")
        else:
            _check_bodies(ordinal, own)
    return copies


def check_run(ordinal: int, flags: bytes) -> None:
    """Checks the flags of one VCHANNEL run, without the other runs."""
    _check_known(flags)
    _check_bodies(ordinal, flags)


def _check_known(flags: bytes) -> None:
    if flags and max(flags) > FLAGS_KNOWN:
        raise FormatError(f"a record has flags {max(flags):#x} that this version does not know: upgrade to read it")


def _check_bodies(ordinal: int, flags: bytes) -> None:
    """Checks that bodies are followed by their commit."""
    if flags.strip(_OF_VCHANNEL) or flags.endswith(_BODY) or _UNCOMMITTED in flags:
        raise inconsistent(f"a body in run {ordinal} has no commit", "bodies, then their commit")


def _check_mixed(
    kinds: bytes, starts: Sequence[int], flags: bytes | None, numbers: Sequence[int], copies: dict[int, int], events: int
) -> None:
    """Checks the indices of any mix of runs: a transaction's commits share one, copies have no rows, the log's own records no index."""
    unordered = set(starts)
    single = list(copies.values())
    commits: set[int] = set()
    for kind, (start, end) in zip(kinds, pairwise(starts), strict=True):
        if kind == RunKind.SYSTEM:
            unordered.update(range(start, end))
        elif kind == RunKind.VCHANNEL and flags is not None:
            for index, flag in zip(numbers[start:end], flags[start:end], strict=True):
                if flag == FLAG_COMMIT:
                    commits.add(index)
                else:
                    single.append(index)
        elif kind != RunKind.SHARED:
            single += numbers[start:end]
    _check_ascending(numbers, unordered)
    used = commits.union(single)
    if not len(used) == events == len(commits) + len(single) or max(used, default=-1) >= events:
        raise inconsistent("two events share an index, or an index has no event", f"each below {events} once")


def _check_ascending(indices: Sequence[int], unordered: Container[int]) -> None:
    """Checks that each index is above the one before it, except in the rows `unordered` (the first row of each run is one)."""
    for row in compress(range(1, len(indices)), map(ge, indices, islice(indices, 1, None))):
        if row not in unordered:
            raise inconsistent(f"the index {indices[row]} of record {row} does not ascend", "ascending in a run")


def inconsistent(actual: str, expected: str) -> CorruptionError:
    """Returns the error for tables that contradict each other."""
    return CorruptionError(f"the tables of a frame contradict each other: {actual}", expected=expected)


_LONG_RUN: Final = 16
_COUNTING: Final = list(range(4096))
# As bytes, so that one call checks a whole column of kinds or flags.
_VCHANNEL: Final = bytes((RunKind.VCHANNEL,))
_SHARED: Final = bytes((RunKind.SHARED,))
_COPY: Final = bytes((RunKind.COPY,))
_OF_VCHANNEL: Final = bytes((0, FLAG_BODY, FLAG_COMMIT))
_COPY_FLAG: Final = bytes((FLAG_COPY,))
_BODY: Final = bytes((FLAG_BODY,))
_UNCOMMITTED: Final = bytes((FLAG_BODY, 0))
