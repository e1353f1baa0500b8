"""Segmenters: one module each, behind `pipeline.grounding.base.Segmenter`.

Nothing is imported here; start at `registry.build_segmenter`.
"""
