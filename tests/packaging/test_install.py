"""`pip install '.[arrow]'` of a clone installs the log and Arrow batches, and hints that name how to install the rest."""

from __future__ import annotations

import textwrap

import pytest

from tests.docs.snippets import ROOT
from tests.packaging.environments import Environment


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("environment") / "venv")
    made.install(f"{ROOT}[arrow]")
    return made


def test_first_screen_runs_without_spark_and_protobuf(environment: Environment) -> None:
    first_screen = """
        import asyncio
        from wal import Message, bridge, open_wal

        async def main():
            async with open_wal("data/") as log:
                await log.raw_append(Message("orders", b"created"))

        asyncio.run(main())
        print([batch.num_rows for batch in bridge.record_batches("data/", "orders", follow=False)])
    """

    INSTALLED = "from importlib.metadata import distributions; print(sorted(one.name.lower() for one in distributions()))"
    ran = environment.run(textwrap.dedent(first_screen))
    assert (ran.stdout, ran.stderr) == ("[1]\n", "")
    installed = environment.run(INSTALLED).stdout
    assert "pyarrow" in installed
    assert not any(name in installed for name in ("pyspark", "protobuf", "grpcio"))


def test_hint_for_an_installed_package_works(environment: Environment) -> None:
    refused = environment.run("import wal.message.codec")
    hint = f"pip install '{ROOT}[wire]'"
    assert hint in refused.stderr.splitlines()[-1]
    environment.install(hint.removeprefix("pip install ").strip("'"))
    assert environment.run("import wal.message.codec").returncode == 0
