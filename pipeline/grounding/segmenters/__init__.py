"""Segmenters: one module each, behind `pipeline.grounding.protocols.Segmenter`.

Nothing is imported here; start at `registry.build_segmenter`.
"""
