"""The built-in model: Wan2.2's pipeline at small size, with everything the real one has."""
