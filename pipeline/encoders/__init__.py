"""Frozen models as two small values: images → [n, d], texts → [n, d].

Nothing heavy is imported here; import what you need from the modules.
"""
