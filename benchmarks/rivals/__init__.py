"""Rivals' own packages as policies of the fleet simulator, beside our copies of those policies."""
