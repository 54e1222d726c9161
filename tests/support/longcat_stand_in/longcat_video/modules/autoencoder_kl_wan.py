from diffusers import AutoencoderKLWan

__all__ = ["AutoencoderKLWan"]
