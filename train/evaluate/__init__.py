"""Scores of an encoder: semantic similarity, geometry of the space, retrieval.

Nothing is imported here; take what you need from `similarity`, `sts`, `geometry` or `retrieval`.
"""
