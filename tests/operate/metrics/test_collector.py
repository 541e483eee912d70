"""The metrics of a log: the content of a scrape, the calling threads, and labels, which never grow with the log."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.snippets import ROOT
from tests.locations import open_wal
from wal import BroadcastMessage, ConsumerInfo, Delivery, Message, Settings
from wal.engine import LogStatistics
from wal.errors import ClosedError, InvalidArgumentError, UnavailableError
from wal.location import parse_location
from wal.operate.metrics import Collector, register
from wal.operate.metrics.collector import MetricsEndpoint
from wal.operate.metrics.families import CURSORS_MAX, FAMILIES, families
from wal.operate.metrics.snapshot import CoordinatorStatistics, CursorLag, MetricsSnapshot, Snapshots
from wal.operate.processes.standalone import ServedLog
from wal.read.cursors.cursor import CursorInfo
from wal.read.figures import Histogram, PChannelStatistics, figures_of
from wal.serve.access import Access

Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(text: str) -> dict[Sample, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def values(text: str, name: str) -> list[float]:
    return [value for (sample, _), value in samples(text).items() if sample == name]


def scrape(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


async def test_scrape_shows_what_was_appended(data_dir: Path, registry: CollectorRegistry) -> None:
    async with open_wal(f"journal:{data_dir}") as log:
        collector = register(log, registry)
        for _ in range(5):
            await log.raw_append(Message("orders", b"x"))
        async with log.txn("orders") as txn:
            await txn.append(b"y")
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            async for _ in scanner:
                break
            await scanner.save()
        await log.broadcast().append(BroadcastMessage(vchannels=["a", "b"], payload=b"z"))
        text = await asyncio.to_thread(scrape, registry)
        statistics = log.statistics()
        assert sum(values(text, "wal_events_total")) == sum(each.events for each in statistics.pchannels)
        assert sum(values(text, "wal_append_seconds_count")) == sum(values(text, "wal_frame_events_count"))
        (pchannel,) = [each.name for each in statistics.pchannels]
        got = samples(text)
        assert got["wal_transactions_total", (("outcome", "committed"), ("pchannel", pchannel))] == 1
        assert got["wal_broadcasts", (("state", "waiting_acks"),)] == 1
        assert got["wal_cursor_lag_bytes", (("cursor", "billing"),)] > 0
        assert got["wal_cursor_lag_seconds", (("cursor", "billing"),)] >= 0
        assert got["wal_up", ()] == 1
        collector.close()
        assert scrape(registry) == ""


async def test_scrape_on_the_loop_needs_no_wait(registry: CollectorRegistry) -> None:
    async with open_wal("memory:") as log:
        collector = register(log, registry)
        await log.raw_append(Message("orders", b"x"))
        assert values(scrape(registry), "wal_events_total") == [1]
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            await scanner.save()
        await collector.refresh()
        assert values(scrape(registry), "wal_cursors") == [1, 0]
        text, kind = await collector.text()
        assert b"wal_events_total" in text
        assert kind.startswith("text/plain")
        collector.close()


async def test_closed_log_is_down(registry: CollectorRegistry) -> None:
    async with open_wal("memory:") as log:
        collector = register(log, registry)
    assert samples(await asyncio.to_thread(scrape, registry)) == {("wal_up", ()): 0}
    collector.close()


async def test_registry_takes_one_log(registry: CollectorRegistry) -> None:
    async with open_wal("memory:") as other:
        async with open_wal("memory:") as log:
            collector = register(log, registry)
        for _ in range(2):  # also after the close of the log
            with pytest.raises(InvalidArgumentError, match=r"close\(\) the collector"):
                register(other, registry)
        collector.close()
        second = register(other, registry)
        registry.unregister(second)  # as a user with only the registry does
        second.close()


async def test_client_counts_as_a_client(data_dir: Path) -> None:
    served = await ServedLog.open(parse_location(str(data_dir)), Settings(), Access(listen="127.0.0.1:0"))
    try:
        async with open_wal(f"wal://{served.server.address}") as log:
            await log.raw_append(Message("orders", b"x"))
            collector = Collector(log)
            text = (await collector.text())[0].decode()
            collector.close()
        assert values(text, "wal_client_events_total") == [1]
        assert values(text, "wal_events_total") == []
        async with MetricsEndpoint("127.0.0.1:0", served.measured()) as endpoint:
            with await asyncio.to_thread(urllib.request.urlopen, f"http://{endpoint.address}/metrics") as answer:
                text = answer.read().decode()
            assert values(text, "wal_events_total") == [1]
            assert values(text, "process_open_fds")
    finally:
        await served.close()


async def test_reader_counts_no_appends(data_dir: Path) -> None:
    async with open_wal(f"journal:{data_dir}") as log:
        await log.raw_append(Message("orders", b"x"))
        async with open_wal(f"journal:{data_dir}", read_only=True) as beside:
            collector = Collector(beside)
            text = (await collector.text())[0].decode()
            collector.close()
    assert values(text, "wal_events_total") == []
    assert values(text, "wal_retention_bytes")[0] > 0


def test_labels_of_cursors_are_bounded() -> None:
    many = [CursorLag(f"cursor {number}", ("a",), number, None, 0, None, False) for number in range(3 * CURSORS_MAX)]
    counts = LogStatistics("journal", 1, 0, 0, ())
    shown = {family.name: family for family in families(MetricsSnapshot(0.0, counts, many), Histogram())}
    assert len(shown["wal_cursor_lag_bytes"].samples) == CURSORS_MAX
    assert min(sample.value for sample in shown["wal_cursor_lag_bytes"].samples) == 2 * CURSORS_MAX
    assert shown["wal_cursors_omitted"].samples[0].value == 2 * CURSORS_MAX


def test_coordinator_shows_its_cluster() -> None:
    leader = CoordinatorStatistics(True, False, {"healthy": 2}, {"assigned": 16})
    shown = {sample.name for family in families(MetricsSnapshot(0.0, coordinator=leader), Histogram()) for sample in family.samples}
    assert {"wal_coordinator_leads", "wal_coordinator_nodes", "wal_coordinator_pchannels"} <= shown
    standby = families(MetricsSnapshot(0.0, coordinator=CoordinatorStatistics(False)), Histogram())
    assert {family.name for family in standby} == {"wal_up", "wal_coordinator_leads"}


async def test_consumers_show_their_counts() -> None:
    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"bad":
            raise ValueError("bad")

    async with open_wal("memory:") as log:
        collector = Collector(log)
        await log.append_txn("jobs", [b"good", b"bad"])
        async with log.consume("jobs", handle, cursor="worker", attempts=1, dead_letter="dead") as consumer:
            await consumer.caught_up()
            text = (await collector.text())[0].decode()
        collector.close()
    expected = {"handled_total": 1, "failed_attempts_total": 1, "dead_letters_total": 1, "retries_total": 0, "pending": 0, "in_hand": 0}
    expected |= {"lag_messages": 0, "lag_bytes": 0, "up": 1, "tripped": 0, "handler_seconds_count": 2}
    for name, count in expected.items():
        assert f'wal_consumer_{name}{{cursor="worker"}} {count}.0' in text
    assert 'wal_consumers{state="running"} 1.0' in text


async def test_files_are_read_once_a_second() -> None:
    looks = 0
    async with open_wal("memory:") as log:

        async def cursors() -> list[object]:
            nonlocal looks
            looks += 1
            return []

        snapshots = Snapshots(log.statistics, cursors, log.retention)  # type: ignore[arg-type]
        await asyncio.gather(*(snapshots.take() for _ in range(10)))
    assert looks == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_scrape_shows_counts_while_metadata_is_slow(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr("wal.operate.metrics.snapshot.LOOK_S", 0.0)
    silent = asyncio.Event()
    async with open_wal("memory:") as log:
        await log.raw_append(Message("orders", b"x"))

        async def cursors() -> list[CursorInfo]:
            if fails:
                raise UnavailableError("etcd does not answer")
            await silent.wait()
            return []

        collector = Collector.of(Snapshots(log.statistics, cursors, log.retention))
        text, _ = await collector.text()
        collector.close()
        assert values(text.decode(), "wal_up") == [1]
        assert sum(values(text.decode(), "wal_events_total")) == 1
        silent.set()
    closed = Snapshots(log.statistics, log.cursors, log.retention)
    with pytest.raises(ClosedError):
        await closed.take()


def test_reference_lists_every_family() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = {name: rest for name, *rest in re.findall(r"^\| `(wal_\w+)` \| ([a-z]+) \| (.*) \| (.+) \|$", page, re.MULTILINE)}
    assert rows == {
        f"{name}_total" if family.kind == "counter" else name: [family.kind, ", ".join(family.labels), family.help]
        for name, family in FAMILIES.items()
    }


@pytest.mark.parametrize("kind", [LogStatistics, PChannelStatistics, ConsumerInfo])
def test_fields_of_one_family_agree(kind: type[msgspec.Struct]) -> None:
    families_of = [(figure.metric, figure.kind, figure.help, figure.label[:1]) for _, figure in figures_of(kind)]
    assert len({name for name, *_ in families_of}) == len(set(families_of))
    samples_of = [(figure.metric, figure.label) for _, figure in figures_of(kind)]
    assert len(samples_of) == len(set(samples_of)), "two fields are one sample"
