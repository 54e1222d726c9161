"""Why a method errs: on a user's own tensors, and in theory."""
