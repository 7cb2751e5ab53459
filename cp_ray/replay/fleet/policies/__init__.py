"""Routing policies of `bench fleet`: one file each, with its project's documented defaults."""
