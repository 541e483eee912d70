"""The commands that print a log beside its writer, after a kill, over the network, and where there is none."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from tests.api.blocking.logs import write_mixture
from tests.operate.cli.test_change import until_shown
from wal import BroadcastMessage, Matching, Message, bridge
from wal.operate.cli.main import main


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def written(log: bridge.BlockingWAL) -> None:
    for number in range(5):
        log.raw_append(Message("orders", b"o%d" % number, properties={"number": str(number)}))
    with log.txn(vchannels=["orders", "stock"]) as txn:
        txn.append(Message("orders", b"paid"))
        txn.append(Message("stock", b"\xff\x1b[2J"))
    with log.read("orders", cursor="billing", follow=False) as messages:
        next(iter(messages))
        messages.save()


def test_rows_beside_the_writer(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with bridge.blocking(data_dir) as log:
        written(log)
        log.broadcast().append(BroadcastMessage(vchannels=["orders", "stock"], payload=b"all"))
        asyncio.run(until_shown(data_dir, "orders", "stock"))
        assert main(["info", place, "--json"]) == 0
        first, pchannel = rows(capsys)
        assert (first["writer"], first["vchannels"], pchannel["pchannel"], pchannel["term"]) == ("open", 2, "p0", 1)
        assert main(["ls", place, "--json"]) == 0
        assert {row["vchannel"]: row["messages"] for row in rows(capsys)} == {"orders": 7, "stock": 2}
        assert main(["cursors", place, "--json", "--max-lag", "5"]) == 1
        (cursor,) = rows(capsys)
        assert (cursor["cursor"], cursor["lag_messages"]) == ("billing", 6)
        assert main(["cursors", place, "--max-lag", "6"]) == 0
        capsys.readouterr()
        assert main(["broadcasts", place, "--json"]) == 0
        (broadcast,) = rows(capsys)
        assert (broadcast["state"], broadcast["missing_acks"]) == ("wait_ack", ["orders", "stock"])
        assert main(["retention", place]) == 0
        assert "billing" in capsys.readouterr().out
        assert main(["health", place, "--writer"]) == 0


def test_tail_ends_with_the_last_messages(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with bridge.blocking(data_dir) as log:
        written(log)
        asyncio.run(until_shown(data_dir, "orders", "stock"))
        assert main(["tail", place, "orders", "-n", "2", "--format", "%y %P %p"]) == 0
        assert capsys.readouterr().out == 'INSERT {"number": "4"} o4\nINSERT {} paid\n'
        assert main(["tail", place, "orders", "--grep", "^o[12]$", "--format", "%p"]) == 0
        assert capsys.readouterr().out == "o1\no2\n"
        assert main(["tail", place, "stock"]) == 0
        assert "\x1b" not in capsys.readouterr().out
        assert main(["peek", place, "billing", "-n", "1", "--format", "%p"]) == 0
        assert capsys.readouterr().out == "o1\n"
        assert main(["cat", place, "orders", "stock", "--json"]) == 0
        bodies = rows(capsys)
        assert [body["payload"] for body in bodies] == ["o0", "o1", "o2", "o3", "o4", "paid", None]
        assert main(["cat", place, "orders", "--since", "1h", "--until", str(bodies[1]["message_id"]), "--format", "%p"]) == 0
        assert capsys.readouterr().out == "o0\no1\n"


def test_cat_writes_files(data_dir: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with bridge.blocking(data_dir) as log:
        written(log)
    for form in ("jsonl", "csv", "parquet"):
        assert main(["cat", str(data_dir), "orders", f"--to-{form}", str(tmp_path / form)]) == 0
    assert parquet.read_table(tmp_path / "parquet")["payload"].to_pylist() == [b"o0", b"o1", b"o2", b"o3", b"o4", b"paid"]
    assert main(["cat", str(data_dir), "orders", "--grep", "(?s).*", "--to-parquet", str(tmp_path / "by_message")]) == 0
    assert parquet.read_table(tmp_path / "parquet").equals(parquet.read_table(tmp_path / "by_message"))
    assert len((tmp_path / "jsonl").read_text().splitlines()) == 6
    assert len((tmp_path / "csv").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("info", "{empty}"), 4, "FormatError"),
        (("verify", "{empty}"), 4, "FormatError"),
        (("info", "{newer}"), 4, "upgrade to open it"),
        (("info", "nothing://x"), 2, "is of no known form"),
        (("verify", "wal://127.0.0.1:1"), 2, "is not a directory"),
        (("info", "wal://127.0.0.1:1"), 3, "UnavailableError"),
        (("tail", "{empty}", "orders", "--since", "soon"), 2, "names no point of a log"),
        (("settings", "--set", "pchannels"), 2, "gives no value"),
    ],
)
def test_wrong_place_is_one_sentence(
    arguments: tuple[str, ...], status: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"empty": tmp_path / "empty", "newer": tmp_path / "newer"}
    for place in places.values():
        place.mkdir()
    (places["newer"] / "FORMAT").write_text("wal-journal 9\n")
    before = sorted(tmp_path.rglob("*"))
    assert main([argument.format(**places) for argument in arguments]) == status
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert words in said.err
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_name_their_sources(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WAL_PCHANNELS", "4")
    assert main(["settings", "--set", "retention_s=7d", "--json"]) == 0
    sources = {row["setting"]: (row["value"], row["source"]) for row in rows(capsys)}
    assert sources["pchannels"] == ("4", "environment")
    assert sources["retention_s"] == ("604800.0", "flag")
    assert sources["txn_bodies_max"] == ("4096", "default")


def test_tail_begins_near_the_end(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last messages, and messages since a time, are read without the earlier part of the log, which is damaged here."""
    place = str(data_dir)
    with bridge.blocking(data_dir) as log:
        log.append_bulk([Message("orders", b"%d " % number + b"x" * 64_000) for number in range(100)])
        last = log.raw_append(Message("orders", b"last"))
    segment = min(data_dir.glob("pchannels/p0/*.wal"))
    with segment.open("r+b") as file:
        file.seek(4096 * 16)
        file.write(b"damage")
    assert main(["cat", place, "orders"]) == 4
    capsys.readouterr()
    assert main(["tail", place, "orders", "-n", "2", "--format", "%l"]) == 0
    assert capsys.readouterr().out == "64003\n4\n"
    assert main(["tail", place, "orders", "--since", str(last.time_tick), "--format", "%l"]) == 0
    assert capsys.readouterr().out == "4\n"


def test_several_pchannels_are_merged(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with bridge.blocking(data_dir, pchannels=2) as log:
        names = [log.create_vchannel(f"v{number}").name for number in range(6)]
        for number in range(30):
            log.raw_append(Message(names[number * 7 % 6], b"%d" % number))
    assert main(["cat", place, *names, "--format", "%p"]) == 0
    assert capsys.readouterr().out.split() == [str(number) for number in range(30)]
    assert main(["tail", place, *names, "-n", "4", "--format", "%p"]) == 0
    assert capsys.readouterr().out.split() == ["26", "27", "28", "29"]
    assert main(["tail", place, *names, "-n", "3", "--grep", "^1", "--format", "%p"]) == 0
    assert capsys.readouterr().out.split() == ["17", "18", "19"]


def test_pattern_prints_a_family(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with bridge.blocking(data_dir, pchannels=3) as log:
        for number in range(20):
            log.raw_append(Message(f"account-{number % 5}", b"%d" % number))
            log.raw_append(Message("other", b"x"))
        with log.read(Matching("account-*"), cursor="sums", follow=False) as messages:
            assert [next(messages).payload for _ in range(15)][-1] == b"14"
            messages.save()
    for arguments, expected in (
        (["cat"], range(20)),
        (["tail", "-n", "4"], range(16, 20)),
        (["tail", "-n", "0"], range(0)),
        (["tail", "--grep", "^1", "-n", "2"], range(18, 20)),
    ):
        assert main([arguments[0], place, "account-*", "--match", *arguments[1:], "--format", "%p"]) == 0
        assert capsys.readouterr().out.split() == [str(number) for number in expected]
    assert main(["peek", place, "sums", "--format", "%p"]) == 0
    assert capsys.readouterr().out.split() == ["15", "16", "17", "18", "19"]
    assert main(["cat", place, "account-*", "a*", "--match"]) == 2
    assert "--match takes one pattern, not 2" in capsys.readouterr().err


def test_frames_are_dumped_as_they_are_stored(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with bridge.blocking(data_dir) as log:
        written(log)
        last = log.raw_append(Message("orders", b"keyed"), idempotency_key="key")
    assert main(["dump", place, "--frames", "--json"]) == 0
    frames = rows(capsys)
    assert [frame["sequence"] for frame in frames] == list(range(len(frames)))
    assert sum(int(str(frame["events"])) for frame in frames) == 5 + 3 + 1
    (keyed,) = [frame for frame in frames if frame["holds"] == ["keys"]]
    assert (keyed["vchannels"], keyed["first_tick"]) == (["orders"], str(last.time_tick))
    assert [frame["vchannels"] for frame in frames if frame["events"] == 3] == [["orders", "stock"]]
    assert main(["dump", place, "--frames", "--since", str(last.message_id), "-n", "1", "--json"]) == 0
    assert rows(capsys) == [keyed]
    assert main(["dump", place, "--frames", "--pchannel", "p7"]) == 2


def test_bench_measures_both_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--time", "0.4s", "--writers", "8", "--json"]) == 0
    measured = [(row["system"], row["writers"]) for row in rows(capsys) if int(str(row["messages"])) > 0]
    assert measured == [("wal", 1), ("sqlite", 1), ("wal", 8), ("sqlite", 8)]
    assert list(tmp_path.iterdir()) == []
    assert main(["bench", str(tmp_path / "none")]) == 2


def test_bench_measures_however_late_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second later, as on a machine that is busy: the time has passed before the first append."""
    looks = itertools.count()
    monkeypatch.setattr("wal.operate.cli.bench.time", SimpleNamespace(perf_counter=lambda: float(next(looks))))
    assert main(["bench", str(tmp_path), "--time", "0.4s", "--writers", "2", "--json"]) == 0
    assert [(row["writers"], row["messages"]) for row in rows(capsys)] == [(1, 1), (1, 1), (2, 2), (2, 2)]


def test_settings_of_a_log_name_what_it_stores(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bridge.blocking(data_dir, pchannels=3, compression="zstd"):
        pass
    assert main(["settings", str(data_dir), "--json"]) == 0
    sources = {row["setting"]: (row["value"], row["source"]) for row in rows(capsys)}
    assert (sources["pchannels"], sources["compression"]) == (("3", "log"), ("zstd", "log"))


def test_parquet_of_every_kind_of_message(data_dir: Path, tmp_path: Path) -> None:
    """The file is the same whether it is written by columns or by messages, which `--grep` needs."""
    parquet = pytest.importorskip("pyarrow.parquet")
    write_mixture(str(data_dir), Random(3))
    for number, choice in enumerate(([], ["--type", "DELETE"], ["--since", "1h", "--until", "2100-01-01T00:00:00Z"])):
        tables = []
        for form, more in (("columns", []), ("messages", ["--grep", "(?s).*"])):
            file = tmp_path / f"{form}-{number}"
            assert main(["cat", str(data_dir), "orders", "payments", *choice, *more, "--to-parquet", str(file)]) == 0
            tables.append(parquet.read_table(file))
        assert tables[0].equals(tables[1])
        assert tables[0].num_rows > 10
