from torchvision._nothing import __getattr__

__all__ = ["__getattr__"]
