"""`kivqa chat`: asking a model questions about pictures, at the terminal or from a script."""
