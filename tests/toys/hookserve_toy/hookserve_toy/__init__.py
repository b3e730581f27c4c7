"""A plugin package for tests: it imports nothing, so that importing it tells nothing."""
