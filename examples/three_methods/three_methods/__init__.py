"""Objectives with state, with mined negatives, and of a paper of 2025."""
