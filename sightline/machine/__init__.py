"""The machine: its hardware, memory and signals, and what a terminal shows meanwhile."""
