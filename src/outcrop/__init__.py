"""Outcrop: exact out-of-core training of graph neural networks and graph embeddings."""
