"""The protocols of a watched component and of its heartbeats."""

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
        """The current status."""

    async def clean(self) -> Status:
        """Releases the resources of the failed run, and returns the status after that."""

    async def restart(self) -> Status:
        """Starts the component again, and returns the status after that."""


class ComponentHeartbeat(Protocol):
    """A sign of life of the component with this `id`."""

    @property
    def id(self) -> str:
        """The id of the component that sent it."""

    @property
    def status(self) -> Status:
        """The component's status when it sent this."""

    def serialize(self) -> str:
        """Returns the component's own text for the log line."""
