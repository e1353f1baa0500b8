"""Folders of models: loaded, told apart by their configuration, and written."""
