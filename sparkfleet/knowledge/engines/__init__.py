"""Engines by release: images, flags, architectures, methods, advisories, NVIDIA's launch lines."""
