"""Rows of jsonl files: opening, checking, splitting; images stay paths until a batch needs them."""
