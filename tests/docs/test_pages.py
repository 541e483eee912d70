"""Every ```python block in README and docs runs and prints the output of the page; links and file names in the pages exist.

The how-to pages and the tutorial run in `test_pages_alone.py`, each with only the extra that it names. Other pages that use Spark are
run in full by tests/spark, and here up to the first block that needs it.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Final

import pytest

import wal
from tests.docs.snippets import PAGES, ROOT, blocks_before_spark, run_page

ALONE: Final = [page for page in PAGES if page.parent.name == "howto" or page.name == "tutorial.md"]
"""The pages that `test_pages_alone.py` runs."""
WITH_CODE: Final = [page for page in PAGES if page not in ALONE and blocks_before_spark(page)]
IDS = [str(page.relative_to(ROOT)) for page in WITH_CODE]
SERVERS: Final = {
    "127.0.0.1:2379": "etcd_address",
    "127.0.0.1:6650": "pulsar_host",
    "127.0.0.1:8080": "pulsar_admin_host",
    "public/default": "pulsar_namespace",
    "a.json.webtoken": "pulsar_token",
}
"""The name of each server in the pages, and the fixture that provides it."""
ROOT_PATH: Final = "by-dev"
"""The root path in the pages; each run uses its own instead."""


def real_names(page: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Starts the servers that a page names, and returns what stands for their names in its code."""
    text = page.read_text()
    names = {name: request.getfixturevalue(fixture) for name, fixture in SERVERS.items() if name in text}
    names[ROOT_PATH] = f"wal-test-{secrets.token_hex(6)}"
    return names


@pytest.mark.parametrize("page", WITH_CODE, ids=IDS)
async def test_code_of_a_page_prints_its_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        await run_page(blocks_before_spark(page), real_names(page, request))
    finally:
        await wal.release()


def test_links_files_and_tests_of_pages_exist(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(str(page.relative_to(ROOT))):
            text = page.read_text()
            targets = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", text)
            files = re.findall(r"`((?:wal|actors|broadcaster|tests|examples|benchmarks|docs)/[\w./-]*)`", text)
            missing = [target for target in targets if not (page.parent / target).exists()]
            missing += [name for name in files if not (ROOT / name).exists()]
            for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+(?:::\w+)?)`", text):
                source = (ROOT / file).read_text() if (ROOT / file).exists() else ""
                missing += [f"{file}::{test}" for name in test.split("::") if not re.search(rf"\b(def|class) {name}\b", source)]
            assert missing == []
