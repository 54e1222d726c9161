from diffusers import FlowMatchEulerDiscreteScheduler

__all__ = ["FlowMatchEulerDiscreteScheduler"]
