"""Reads a checkpoint's config and headers: architecture, quantisation and sizes. The only reader of configs."""
