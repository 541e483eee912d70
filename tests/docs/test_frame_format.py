"""The page on the frame format is right: the page's reader reads every golden frame, and finds the documented content."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.snippets import ROOT, blocks
from tests.golden.frame_cases import GOLDEN, path_of
from tests.golden.frame_cases import _bytes as short
from wal.frame import ExtTag, RunKind, SystemRecord
from wal.message import BroadcastHeader, MessageType, ResourceKey

PAGE: Final = ROOT / "docs" / "reference" / "frame-format.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Returns the names that the first block of the page defines."""
    namespace: dict[str, Any] = {}
    exec(next(blocks(PAGE)).code, namespace)
    return namespace


@pytest.mark.parametrize("case", GOLDEN)
def test_reader_of_the_page_reads_golden_frames(page: dict[str, Any], case: str) -> None:
    SAID = json.loads((path_of("plain").parent / "frame_v1.json").read_text(encoding="utf-8"))
    kinds = {kind.name: int(kind) for kind in RunKind}
    said = SAID[case]
    header, rows, copies = page["read_frame"](path_of(case).read_bytes())
    assert header == {name: said["header"][name] for name in header}
    expected, expected_copies = [], []
    for run in said["runs"]:
        if run["kind"] == "COPY":
            expected_copies.append((run["name"], run["incarnation"], run["shared"], run["index"]))
            continue
        types = SystemRecord if run["kind"] == "SYSTEM" else MessageType
        count = len(run["payloads"])
        for at in range(count):
            expected.append(
                (
                    kinds[run["kind"]],
                    run["name"],
                    run["incarnation"],
                    run["indices"][at],
                    int(types[run["types"][at]]) if run["types"] else 2,
                    run["flags"][at] if run["flags"] else 0,
                    run["payloads"][at],
                    run["properties"][at] if run["properties"] else "",
                    {int(ExtTag[tag]): value for tag, value in run["exts"][at].items()} if run["exts"] else {},
                )
            )
    found = [(*row[:6], short(row[6]), short(row[7]), {tag: short(value) for tag, value in row[8].items()}) for row in rows]
    assert found == expected
    assert copies == expected_copies


@pytest.mark.parametrize("copies", [[], ["b", "d"], ["a", "b", "c", "d"]])
@pytest.mark.parametrize("keys", [(), (ResourceKey("table", "shop", shared=True),)])
def test_reader_of_the_page_reads_broadcast_headers(page: dict[str, Any], copies: list[str], keys: tuple[ResourceKey, ...]) -> None:
    header = BroadcastHeader(7, ("a", "b", "c", "d"), keys, False)
    number, names, found, needs_ack = page["broadcast_header"](header.to_bytes(copies), copies)
    assert (number, names, needs_ack) == (7, ["a", "b", "c", "d"], False)
    assert [ResourceKey(domain, key, shared=shared) for domain, key, shared in found] == list(keys)


def test_damage_and_newer_versions_are_refused(page: dict[str, Any]) -> None:
    data = bytearray(path_of("broadcast").read_bytes())
    for at in range(len(data)):
        data[at] ^= 0x10
        with pytest.raises((ValueError, struct.error)):
            page["read_frame"](bytes(data))
        data[at] ^= 0x10


def test_page_names_every_number_there_is() -> None:
    text = Path(PAGE).read_text(encoding="utf-8")
    for kind in RunKind:
        assert f"{int(kind)} {kind.name}" in text
    for tag in ExtTag:
        assert f"{int(tag)} {tag.name}" in text
