"""Files and folders: what a file is, where it lies, and how it is written, locked and left."""
