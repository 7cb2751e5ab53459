"""Stands in for torchvision, which has no build for this PyTorch on a CPU: names, and no code.

SGLang imports it for pictures. Text never gets that far. Only for tests without a GPU.
"""

from torchvision._nothing import __getattr__

__all__ = ["__getattr__"]
__version__ = "0.28.0"  # transformers asks; the one that belongs to torch 2.13
