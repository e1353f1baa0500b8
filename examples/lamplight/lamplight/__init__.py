"""One of every seam of Sightline, from a data set to a kind of row."""
