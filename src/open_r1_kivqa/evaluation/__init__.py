"""Evaluation: the same questions under several settings, scored by training's own scorer."""
