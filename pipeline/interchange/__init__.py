"""Features in the forms of other people's code: read and written, never unpickled."""
