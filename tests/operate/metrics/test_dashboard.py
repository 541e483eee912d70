"""The dashboard and the alerts use names and labels of a real scrape, in complete expressions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.docs.snippets import ROOT
from tests.locations import open_wal
from wal import Delivery, Message
from wal.operate.metrics import Collector
from wal.operate.metrics.families import FAMILIES

DASHBOARD: Final = json.loads((ROOT / "docs/monitoring/dashboard.json").read_text())
ALERTS: Final[list[dict[str, Any]]] = yaml.safe_load((ROOT / "docs/monitoring/alerts.yml").read_text())["groups"][0]["rules"]
EXPRESSIONS: Final = {
    **{f"{panel['title']} {target['refId']}": target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]},
    **{rule["alert"]: rule["expr"] for rule in ALERTS},
}
SUFFIXES: Final = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
SAMPLES: Final = {name + suffix: family for name, family in FAMILIES.items() for suffix in SUFFIXES[family.kind]}


def test_expression_uses_exported_names(subtests: pytest.Subtests) -> None:
    for where in EXPRESSIONS:
        with subtests.test(where):
            functions = {"rate", "sum", "max", "min", "histogram_quantile", "by", "and"}
            common = {"instance", "job", "le"}
            expression = EXPRESSIONS[where]
            for pair in ("()", "{}", "[]"):
                assert expression.count(pair[0]) == expression.count(pair[1]), expression
            names = re.findall(r"wal_\w+", expression)
            assert names
            assert set(names) <= set(SAMPLES), "a name that is not exported"
            labels = {label for name in names for label in SAMPLES[name].labels} | common
            grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
            matched = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", expression))
            assert grouped | matched <= labels, "a label that the family does not have"
            for name in names:
                if name.endswith(("_total", "_bucket", "_sum", "_count")):
                    assert re.search(rf"rate\({name}(\{{[^}}]*\}})?\[[^\]]+\]\)", expression), "a counter is read by its rate"
            bare = re.sub(r"wal_\w+|\"[^\"]*\"|\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", "", expression)
            assert set(re.findall(r"[a-z_]+", bare)) <= functions


def test_legends_use_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped


async def test_panels_of_a_log_find_data(data_dir: Path) -> None:
    async def handle(delivery: Delivery) -> None: ...

    async with open_wal(f"journal:{data_dir}", retention_bytes=1 << 30, archive=f"{data_dir}-archive") as log:
        await log.raw_append(Message("orders", b"x"))
        await log.raw_append(Message("orders", b"y"))
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            async for _ in scanner:
                break
            await scanner.save()
        async with log.consume("orders", handle, cursor="packing") as consumer:
            await consumer.caught_up()
            collector = Collector(log)
            text = (await collector.text())[0].decode()
            collector.close()
    scraped = set(re.findall(r"^(wal_\w+)", text, re.MULTILINE))
    used = {name for expression in EXPRESSIONS.values() for name in re.findall(r"wal_\w+", expression)}
    assert {name for name in used if not name.startswith("wal_coordinator")} <= scraped


def test_runbook_has_a_section_for_each_alert() -> None:
    page = (ROOT / "docs/howto/runbook.md").read_text()
    sections = re.findall(r"^### (\w+)\n\n(\S)", page, re.MULTILINE)
    assert sorted(name for name, _ in sections) == sorted(rule["alert"] for rule in ALERTS)
    for rule in ALERTS:
        assert rule["annotations"]["runbook_url"] == f"docs/howto/runbook.md#{rule['alert'].lower()}"
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"page", "ticket"}
