"""Tables of other tools, and what is read from them: rows, columns, names of images."""
