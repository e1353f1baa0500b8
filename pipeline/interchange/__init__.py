"""Features in the formats of other projects: read and written, never unpickled."""
