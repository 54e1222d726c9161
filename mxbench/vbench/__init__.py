"""VBench (Huang et al. 2024, arXiv:2311.17982) in a process of its own.

The package cannot be installed beside diffusers by a resolver, so it is called by a worker (``inside/``), which runs in
whatever interpreter holds it and imports nothing of ours. What is scored are videos of one's own, seven of its sixteen
dimensions.
"""
