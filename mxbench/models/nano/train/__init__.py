"""Train the built-in model: ``python -m mxbench.models.nano.train``. Needs torch, diffusers and transformers alone."""
