"""Number formats: elements, shared scales, and the block formats made of both."""
