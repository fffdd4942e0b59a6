"""The knowledge base and the passages that a prompt shows."""
