"""Watches the components of a process: one that falls silent or fails is cleaned up and restarted, once for each failure.

Files:

* component:    what a watched component and a heartbeat must have
* guard:        the actor that watches one component and helps it
* status:       the status of a component
* target_state: what is known of a component, and whether it needs help. Pure
* watchdog:     Watchdog, the calls
"""

from wal.watchdog.component import ActiveComponent, ComponentHeartbeat
from wal.watchdog.status import Status
from wal.watchdog.target_state import TargetStatistics
from wal.watchdog.watchdog import Watchdog

__all__ = ["ActiveComponent", "ComponentHeartbeat", "Status", "TargetStatistics", "Watchdog"]
