"""`sightline paper`: the papers' tables and figures, and what was measured of them."""
