"""What a training would see in a cache: one feature set, or images beside their captions.

Nothing is imported here; start at `diagnose.diagnose`.
"""
