"""Which articles and sections of a knowledge base fit a picture and a question."""
