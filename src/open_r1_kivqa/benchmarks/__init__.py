"""Readers of the files that public benchmarks come in; `kivqa convert` turns them into rows."""
