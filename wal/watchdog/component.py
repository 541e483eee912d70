"""What a watched component must have, and its heartbeats."""

from __future__ import annotations

from typing import Protocol

from wal.watchdog.status import Status

__all__ = ["ActiveComponent", "ComponentHeartbeat"]


class ActiveComponent(Protocol):
    """A component that can be watched. `id` never changes."""

    @property
    def id(self) -> str:
        """The name under which it is watched."""

    @property
    def status(self) -> Status:
        """Its status now."""

    async def clean(self) -> Status:
        """Releases what a failed run left behind, and returns the status then."""

    async def restart(self) -> Status:
        """Starts it again, and returns the status then."""


class ComponentHeartbeat(Protocol):
    """A sign of life of the component with this `id`."""

    @property
    def id(self) -> str:
        """The component's name."""

    @property
    def status(self) -> Status:
        """The component's status when it sent this."""

    def serialize(self) -> str:
        """Returns what the component says of itself, for the log line."""
