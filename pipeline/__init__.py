"""Everything that makes the cache: data sets, frozen encoders, extraction, stages and the CLI."""
