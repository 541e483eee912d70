"""`wal verify` and `wal repair`: detect damage in a journal, and repair what can be repaired without losing a message.

Verifying takes no lock and changes nothing. Repairing first prints its plan, needs the lock of the directory, and removes no file: a file
that is replaced or abandoned is renamed, with `.damaged` after its name. Damage in a segment is never repaired: its messages are lost, and
the operator decides with `wal truncate`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wal.channels.pchannels import CHECKPOINT_PREFIX, PREFIX, checkpoint_records, decode, names_in
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError, WALError, shortened
from wal.location import parse_location
from wal.message import LogPosition, MessageID
from wal.operate.cli.commands import EXIT_FINDING
from wal.operate.cli.output import (
    add_log,
    check_free,
    check_present,
    confirmed,
    directory_of,
    note,
    progress_noted,
    settings_of,
    show,
    size_text,
    tell,
    time_text,
)
from wal.operate.inspect.rows import HealthRow, Row, row_of
from wal.runtime.secret import Secret
from wal.runtime.threads import in_thread
from wal.storage.files import FORMAT_NAME, MAP_NAME, META_NAME, FileAccess
from wal.storage.journal.control import CONTROL_NAME, FENCE_NAME, REPLACED_TERM, ControlView
from wal.storage.journal.directory import check_format, raise_format
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import ENVELOPE_BYTES, HEADER_PAGE_BYTES, segment_name
from wal.storage.journal.salvage import LostPart, salvaged
from wal.storage.journal.segments import segment_bases
from wal.storage.journal.verify import LOST_CONTROL, Damage, VerifyProgress, verify_journal
from wal.storage.kv import RecordsBeside
from wal.timestamp import to_datetime

if TYPE_CHECKING:
    from wal.channels.vchannel_map import VChannelMap

_HEALTH_BYTES: Final = 256 << 20
"""The bytes of segments that `wal health` reads."""
_LOST: Final = {
    "format": "nothing is lost: it only says what the directory is",
    "index": "nothing is lost: it is computed from the segment",
    "control": "nothing is lost: it is made again from the segments",
    "map": "nothing is lost: it is written again from the metadata",
    "cursor": "its position is lost: the reader starts again",
    "checkpoint": "the idempotency keys and producers that only it knew are forgotten; no message is touched",
}


class DamageRow(Row, frozen=True, kw_only=True, tag="damage"):
    """Damage in a file of a journal. `repair` describes what `wal repair` loses there, None if it cannot repair it."""

    path: str
    offset: int
    kind: str
    problem: str
    repair: str | None


class VerifiedRow(Row, frozen=True, kw_only=True, tag="verified"):
    """The amount that a verification read, and the number of damaged parts."""

    frames: int
    bytes: int
    seconds: float
    damaged: int


class LostRow(Row, frozen=True, kw_only=True, tag="lost"):
    """Unreadable bytes of a segment, whose content is lost.

    `vchannels`, the number of `events`, and the ids of the first and the last event come from the index of the segment; they are None
    without an index, and the ids without events. The events are of the time from `since` to `until`.
    """

    path: str
    offset: int
    bytes: int
    pchannel: str
    vchannels: tuple[str, ...] | None
    events: int | None
    first_id: str | None
    last_id: str | None
    since: datetime
    until: datetime


def lost_row(part: LostPart) -> LostRow:
    """Returns the row of a lost part."""

    def id_of(position: LogPosition | None) -> str | None:
        return None if position is None else str(MessageID(part.pchannel, part.incarnation, *position))

    return row_of(
        LostRow,
        part,
        bytes=part.end - part.begin,
        first_id=id_of(part.first),
        last_id=id_of(part.last),
        since=to_datetime(part.first_tick),
        until=to_datetime(part.last_tick),
    )


def segments_row(directory: Path) -> HealthRow:
    """Checks the segments of a small journal, and a sample of a large one, since a health check must be fast."""
    size = 0
    for file in directory.glob("pchannels/*/*.wal"):
        with contextlib.suppress(FileNotFoundError):  # it was truncated meanwhile
            size += file.stat().st_size
    share = min(1.0, _HEALTH_BYTES / max(1, size))
    damages = [damage for damage in verify_journal(directory, VerifyProgress(), sample=share) if damage.kind == "segment"]
    checked = "all segments were checked" if share == 1 else f"{max(share, 0.01):.0%} of the full segments were checked"
    if not damages:
        return HealthRow(check="segments", ok=True, detail=f"{checked}, and none is damaged")
    more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
    where = f"{damages[0].path} is damaged at offset {damages[0].offset}{more}"
    return HealthRow(check="segments", ok=False, detail=f"{where}: `wal repair --dry-run` says what is lost; {checked}")


def fill_verify(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal verify`."""
    add_log(
        parser,
        "Checks every checksum of a journal, and that its files agree. Needs no lock, and runs beside a writer.",
        location="DIRECTORY",
    )
    parser.add_argument("--sample", metavar="PERCENT", default="100%", help="reads this part of the full segments only, such as 5%%")
    parser.set_defaults(run=_verify)


def fill_repair(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal repair`."""
    add_log(parser, "Repairs what can be repaired without losing a message. It says first what it would do.", location="DIRECTORY")
    parser.add_argument("--dry-run", action="store_true", help="changes nothing, prints the plan, and ends with 1 if anything would change")
    parser.add_argument("-y", "--yes", action="store_true", help="does not ask")
    parser.set_defaults(run=_repair)


def damage_in(directory: Path, progress: VerifyProgress, sample: float = 1.0, *, kv: str | Secret | None = None) -> Iterator[Damage]:
    """Yields all damage in a journal: of its logs, and of its cursors, maps and metadata. `kv` is the location of the metadata, if
    elsewhere.
    """
    from wal.channels.vchannel_map import VChannelMap
    from wal.read.cursors.pins import PinFiles
    from wal.read.cursors.store import DamagedCursor

    yield from verify_journal(directory, progress, sample=sample)
    maps: dict[str, VChannelMap] = {}
    for path in sorted(directory.glob(f"pchannels/*/{MAP_NAME}")):
        try:
            maps[path.parent.name] = VChannelMap.decode(path.read_bytes(), path)
        except CorruptionError as error:
            yield Damage(path=str(path), offset=error.offset or 0, problem=str(error), kind="map")
        except FileNotFoundError:
            continue
    pins = PinFiles(directory)
    for cursor in map(pins.read, pins.names()):
        if isinstance(cursor, DamagedCursor):
            yield Damage(path=str(directory / "cursors" / Path(cursor.file).name), offset=0, problem=str(cursor.error), kind="cursor")
    file = directory / META_NAME
    if kv is not None:
        note("the metadata are elsewhere (setting kv), and were not checked")
        return
    terms = {path.parent.name: _term(path) for path in directory.glob(f"pchannels/*/{CONTROL_NAME}")}
    try:
        metadata = RecordsBeside(file).load() if file.exists() else {}
        records = checkpoint_records(metadata)
        problems = [*_outdated_metadata(metadata, terms), *_lost_vchannels(metadata, maps)]
    except CorruptionError as error:
        yield Damage(path=str(file), offset=0, problem=str(error), kind="metadata")
        return
    for problem in problems:
        yield Damage(path=str(file), offset=0, problem=problem, kind="metadata")
    folders = sorted(directory.glob("pchannels/*"))
    names = names_in(metadata)
    unknown = [folder.name for folder in folders if folder.name not in names and _has_frames(folder)]
    if unknown:
        problem = f"the metadata of pchannel {', '.join(unknown)} are lost, or elsewhere (setting kv): restore a backup"
        yield Damage(path=str(file), offset=0, problem=problem, kind="metadata")
    yield from _lost_logs(directory, metadata)
    for name, record in records.items():
        state = record.state
        path = directory / "pchannels" / name / f"checkpoint-{state or 0:016x}"
        if state is not None and not path.exists() and checkpoint_records(RecordsBeside(file).load()).get(name) == record:
            problem = "it is missing, and the metadata name it as the checkpoint that counts"
            yield Damage(path=str(path), offset=0, problem=problem, kind="checkpoint")


def _term(control: Path) -> int:
    """Returns the term of the log with this control page, 0 if the page has none."""
    try:
        with contextlib.closing(ControlView(control)) as view:
            term = view.load().term
    except (OSError, WALError):
        return 0
    return 0 if term == REPLACED_TERM else term


def _outdated_metadata(metadata: Mapping[str, str], terms: Mapping[str, int]) -> Iterator[str]:
    """Yields a problem for each log whose term is above the one in the metadata. A writer raises the term in the metadata first, so these
    are too old.
    """
    for name in names_in(metadata):
        meta = decode(name, metadata[PREFIX + name])
        if meta.term < terms.get(name, 0):
            yield f"pchannel {name} is in term {meta.term} there, and its log is in term {terms[name]}: they are older; restore a backup"


def _lost_vchannels(metadata: Mapping[str, str], maps: Mapping[str, VChannelMap]) -> Iterator[str]:
    """Yields a problem for each vchannel that the maps have and the metadata have lost. The maps were read first."""
    from wal.channels.directory import NEXT_KEY, RecordCounter, infos_in

    infos = infos_in(metadata)
    try:
        counter = RecordCounter.parse(metadata.get(NEXT_KEY, "1 0"))
    except ValueError as error:
        raise CorruptionError(f"the counter of the vchannels cannot be read: {error}", expected=NEXT_KEY) from error
    for name in names_in(metadata):
        if name not in maps or maps[name].incarnation != decode(name, metadata[PREFIX + name]).incarnation:
            continue
        incarnations = {info.name: info.incarnation for info in infos if info.pchannel == name}
        problem = maps[name].lost_by(incarnations, counter.next_incarnation, counter.removals)
        if problem is not None:
            yield f"of pchannel {name}: {problem}; restore a backup"


def _lost_logs(directory: Path, metadata: Mapping[str, str]) -> Iterator[Damage]:
    """Yields the pchannels of the metadata that have no log, because their folder is missing or empty."""
    for name in names_in(metadata):
        folder = directory / "pchannels" / name
        if any((folder / file).exists() for file in (CONTROL_NAME, FENCE_NAME, MAP_NAME)):
            continue  # damage of its files is reported elsewhere
        if segment_bases(folder):
            yield Damage(path=str(folder / CONTROL_NAME), offset=0, problem=LOST_CONTROL, kind="control")
        else:
            yield Damage(path=str(folder), offset=0, problem=f"the log of pchannel {name} is missing, and the metadata name it", kind="log")


def _has_frames(folder: Path) -> bool:
    """Returns whether the log in this folder ever held a frame; a log whose creation was interrupted has none."""
    bases = segment_bases(folder)
    if bases != [0]:
        return bool(bases)
    with (folder / segment_name(0)).open("rb") as file:
        file.seek(HEADER_PAGE_BYTES)
        return any(file.read(ENVELOPE_BYTES))


def _check_journal(directory: Path) -> None:
    """Raises FormatError or StorageError unless the directory has, or had, the log of a pchannel. A lost log is a finding and raises
    nothing.
    """
    try:
        check_present(directory)
    except CorruptionError:
        pass  # a control page is missing
    except FormatError:
        check_format(directory)
        file = directory / META_NAME
        if not file.exists() or not names_in(RecordsBeside(file).load()):
            raise


def _verify(arguments: argparse.Namespace) -> int:
    directory, sample = directory_of(arguments), _share(arguments.sample)
    _check_journal(directory)
    progress, began = VerifyProgress(), time.monotonic()
    count = 0
    with progress_noted(lambda: _rate_text(progress, began)):
        for damage in damage_in(directory, progress, sample, kv=settings_of(arguments)[0].kv):
            tell(_row(damage), f"{damage.path} at offset {damage.offset}: {damage.problem}", arguments)
            count += 1
    took_s = time.monotonic() - began
    row = VerifiedRow(frames=progress.frames, bytes=progress.bytes_done, seconds=round(took_s, 3), damaged=count)
    show([row], arguments)
    note(f"{size_text(progress.bytes_done)} in {time_text(took_s)}, {progress.bytes_done / max(took_s, 1e-9) / 1e9:.2f} GB/s")
    return EXIT_FINDING if count else 0


def _repair(arguments: argparse.Namespace) -> int:
    directory = directory_of(arguments)
    _check_journal(directory)
    settings, _ = settings_of(arguments)
    check_free(parse_location(arguments.location), settings)
    damages = list(damage_in(directory, VerifyProgress(), kv=settings.kv))
    lost = _lost(directory, damages)
    show([*(_row(damage) for damage in damages), *map(lost_row, lost)], arguments)
    repairable = [damage for damage in damages if damage.kind in _LOST]
    rest = len(damages) - len(repairable)
    if rest:
        in_segments = any(damage.kind not in (*_LOST, "metadata") for damage in damages)
        hint = ": what they held is lost; `wal truncate --up-to ID` drops the log up to there" if in_segments else ""
        note(f"{rest} of these cannot be repaired{hint}")
    if lost:
        until = (to_datetime(max(part.last_tick for part in lost)) + timedelta(milliseconds=1)).isoformat(timespec="milliseconds")
        note(
            f"a backup made before the damage has it all: `wal restore TARGET NEW_DIRECTORY --to {until}` makes the log as it was then "
            f"(`wal backup verify TARGET` names damage that was copied); `wal copy {directory} NEW_DIRECTORY --skip-damaged` copies what "
            "can be read"
        )
    if not repairable:
        return EXIT_FINDING if rest else 0
    if arguments.dry_run or not confirmed(arguments, f"Repair {len(repairable)} of {len(damages)}?"):
        return EXIT_FINDING
    repaired = asyncio.run(_repaired(directory, repairable))
    for damage in repairable:
        note(f"repaired {damage.path}" if damage in repaired else f"left {damage.path} as it is: it changed meanwhile")
    return EXIT_FINDING if rest else 0


def _lost(directory: Path, damages: list[Damage]) -> list[LostPart]:
    """Returns the lost parts of the pchannels with damage in a segment. A damaged control page has to be repaired first."""
    folder = directory / "pchannels"
    lost: list[LostPart] = []
    names = {Path(damage.path).relative_to(folder).parts[0] for damage in damages if damage.kind == "segment"}
    for name in sorted(names):
        with contextlib.suppress(CorruptionError):
            lost += salvaged(folder / name)
    return lost


async def _repaired(directory: Path, damages: list[Damage]) -> list[Damage]:
    """Repairs those of the damages that still exist, and returns them.

    A writer may have run since the damage was detected, so it is checked again under the lock of the directory. Then the log is opened and
    closed, which recreates everything that can be computed.
    """
    from wal.api.opening import open_wal
    from wal.storage.journal.directory import DirectoryLock
    from wal.storage.kv import SqliteKV

    lock = await in_thread(DirectoryLock.acquire, directory)
    try:
        remaining = await in_thread(_still, directory, damages)
        forgotten = sorted({Path(damage.path).parent.name for damage in remaining if damage.kind == "checkpoint"})
        if forgotten:
            if not await in_thread((directory / META_NAME).exists):
                raise InvalidArgumentError(f"the metadata of {directory} are elsewhere: a checkpoint is repaired only with them")
            kv = await SqliteKV.open(directory / META_NAME)
            try:
                await kv.multi_remove([CHECKPOINT_PREFIX + name for name in forgotten])
            finally:
                await kv.close()
        if any(damage.kind == "format" for damage in remaining):
            await in_thread(_write_format, directory)
        await in_thread(_set_aside, [Path(damage.path) for damage in remaining if damage.kind not in ("control", "format")])
    finally:
        lock.release()
    if remaining:
        # without its page, the log of a pchannel seems never to have been created
        lost = any(damage.kind == "control" for damage in remaining)
        async with open_wal(directory, create=lost):
            pass
    return remaining


def _still(directory: Path, damages: list[Damage]) -> list[Damage]:
    """Returns the damages that still exist. Full segments are read again only to check an index."""
    sample = 1.0 if any(damage.kind == "index" for damage in damages) else sys.float_info.epsilon
    now = {(damage.kind, damage.path) for damage in damage_in(directory, VerifyProgress(), sample)}
    return [damage for damage in damages if (damage.kind, damage.path) in now]


def _write_format(directory: Path) -> None:
    disk = Disk()
    disk.access = FileAccess.like(directory / FORMAT_NAME)
    raise_format(disk, directory)


def _set_aside(paths: list[Path]) -> None:
    for path in paths:
        try:
            path.rename(path.with_name(f"{path.name}.damaged"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{path} cannot be renamed: {error.strerror}") from error


def _rate_text(progress: VerifyProgress, began: float) -> str:
    """Returns the speed and the remaining time."""
    took_s = time.monotonic() - began
    rate = progress.bytes_done / took_s
    left_s = (progress.bytes_total - progress.bytes_done) / rate if rate else 0.0
    done, total = size_text(progress.bytes_done), size_text(progress.bytes_total)
    return f"{done} of {total}, {rate / 1e9:.2f} GB/s, {time_text(max(0.0, left_s))} left"


def _row(damage: Damage) -> DamageRow:
    return row_of(DamageRow, damage, repair=_LOST.get(damage.kind))


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
        if not 0 < share <= 1:
            raise ValueError(text)
    except ValueError:
        raise InvalidArgumentError(f"--sample {shortened(text)} is not a part of a log: write a percentage above 0%, up to 100%") from None
    return share
