"""What each objective computes: modules with heads and buffers. They import torch."""
