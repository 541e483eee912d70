"""The parameters of a process: text by name, in order, filled from YAML files. It needs the extra `params` for YAML alone.

Files:

* table:      GlobalParamsTable, the parameters
* yaml_file:  a YAML file as parameters
"""

from wal.params.table import GlobalParamsTable

__all__ = ["GlobalParamsTable"]
