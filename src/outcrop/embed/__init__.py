"""Graph embeddings larger than memory: partitioned tables on disk, trained bucket by bucket."""
