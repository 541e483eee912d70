"""The version of this code: that of a release, whose tag is `v0.2.0`, or before it `0.2.0.dev0`; CHANGELOG.md lists the changes."""

__version__ = "0.2.0"
