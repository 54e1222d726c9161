"""Recipes, cells, the store that keeps them and the runner that fills it."""
