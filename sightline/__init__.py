"""Shared by pipeline and trainer: errors, files, locks, signals, progress, loading, the cache."""
