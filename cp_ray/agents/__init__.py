"""Agents: clients that ask the application many times to answer once."""
