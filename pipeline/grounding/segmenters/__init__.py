"""Segmenters: one module each, behind `pipeline.grounding.protocols.Segmenter`.

Nothing is imported here; their settings are in `pipeline.grounding.settings`.
"""
