"""Stands in for LongCat-Video's own package: its names and signatures, at small size and by plain torch."""
