"""The version of this release; its tag is `v0.1.0`, and CHANGELOG.md lists its changes."""

__version__ = "0.1.0"
