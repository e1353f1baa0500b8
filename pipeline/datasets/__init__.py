"""Data sets: one module per source, which turns the user's files into manifests."""
