"""Retrievers: from a question to the `documents` of one request."""
