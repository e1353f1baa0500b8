"""Data sets: one module a source, each of which turns what a user has into manifests."""
