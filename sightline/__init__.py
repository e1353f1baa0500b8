"""The floor that both rooms stand on: errors, files, locks, signals, progress, devices, loading."""
