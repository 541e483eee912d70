"""The files for containers are valid: each service and each container runs an existing command with existing flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.processes import run_python

FOLDER: Final = Path(__file__).parents[3] / "examples" / "cluster"


def commands_in_compose() -> list[list[str]]:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return [service["command"] for service in services.values() if service["image"] == "wal-runtime"]


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def commands_in_kubernetes() -> list[list[str]]:
    sets = [document["spec"]["template"]["spec"] for document in documents() if document["kind"] == "StatefulSet"]
    return [container["args"] for pod in sets for container in pod["containers"]]


@pytest.mark.parametrize("command", [*commands_in_compose(), *commands_in_kubernetes()], ids=lambda command: " ".join(command[:2]))
def test_flags_are_known(command: list[str]) -> None:
    name, *arguments = command
    known = run_python("-m", "wal", name, "--help").out
    assert [flag for flag in arguments if flag.startswith("--") and f"{flag} " not in known.replace("\n", " ")] == []


def test_compose_has_two_coordinators_and_three_nodes() -> None:
    assert sorted(command[0] for command in commands_in_compose()) == ["coordinator"] * 2 + ["node"] * 3


def test_kubernetes_keeps_all_but_one_and_spreads_them() -> None:
    budgets = {each["metadata"]["name"]: each["spec"]["maxUnavailable"] for each in documents() if each["kind"] == "PodDisruptionBudget"}
    assert budgets == {"wal-node": 1, "wal-coordinator": 1}
    sets = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in documents() if each["kind"] == "StatefulSet"}
    assert sets["wal-node"]["terminationGracePeriodSeconds"] > 20
    for pod in sets.values():
        assert pod["affinity"]["podAntiAffinity"]
        assert all("livenessProbe" in container for container in pod["containers"])
