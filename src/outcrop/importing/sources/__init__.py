"""What a graph can be imported from: readers of foreign files that hand out bounded blocks."""
