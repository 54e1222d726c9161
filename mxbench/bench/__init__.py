"""How fast: attention kernels, their pre-passes and whole calls beside installed peers, each checked first."""
