"""Memory: what is known of a user becomes context blocks."""
