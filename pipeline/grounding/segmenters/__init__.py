"""Segmenters: one file each, its settings and its model."""
