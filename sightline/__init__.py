"""Shared by pipeline and trainer: errors, files, locks, signals, progress, devices, loading."""
