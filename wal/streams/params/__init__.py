"""The parameters of a process: a sorted map from names to text, which YAML files can fill. Only YAML needs the extra `params`."""

from wal.streams.params.table import GlobalParamsTable

__all__ = ["GlobalParamsTable"]
