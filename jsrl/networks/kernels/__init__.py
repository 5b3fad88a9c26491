"""Kernels: convolutions, pooling and products that are fast on CPU."""
