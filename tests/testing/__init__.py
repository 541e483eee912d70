"""The pytest plugin of the distribution, as a service's own tests use it."""
