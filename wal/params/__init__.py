"""The parameters of a process: a sorted map from names to text, which YAML files can fill. Only YAML needs the extra `params`.

Files:

* table:      GlobalParamsTable, the parameters
* yaml_file:  reads the parameters in a YAML file
"""

from wal.params.table import GlobalParamsTable

__all__ = ["GlobalParamsTable"]
