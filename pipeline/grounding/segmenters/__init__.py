"""Segmenters: one module each, behind `pipeline.grounding.protocols.Segmenter`.

Nothing is imported here; start at `segmenter_config`.
"""
