"""Extraction: plan what is missing, decode, encode, write."""
