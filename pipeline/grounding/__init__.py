"""Grounding: captioned images → exact (phrase, span, box, mask, cut-out) records."""
