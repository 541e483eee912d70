"""Watches the components of a process: one that fails, or sends no heartbeat for its timeout, is cleaned up and restarted, once a failure.

Files:

* component:    what a watched component and a heartbeat must have
* guard:        the actor that watches one component and restarts it
* status:       the status of a component
* target_state: what is known of a component, and whether it has to be restarted. Pure
* watchdog:     Watchdog, the calls
"""

from wal.watchdog.component import ActiveComponent, ComponentHeartbeat
from wal.watchdog.status import Status
from wal.watchdog.target_state import TargetStatistics
from wal.watchdog.watchdog import Watchdog

__all__ = ["ActiveComponent", "ComponentHeartbeat", "Status", "TargetStatistics", "Watchdog"]
