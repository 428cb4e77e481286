"""Tensors in host memory that a GPU reads in place: PyTorch-Direct on stock PyTorch."""
