"""Engines and the replica that runs one under Ray Serve."""
