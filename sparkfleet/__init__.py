"""sparkfleet: serve open models well on NVIDIA DGX Sparks."""

__version__ = "0.1.0"
