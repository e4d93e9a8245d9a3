"""Reads files of foreign origin: size limits, regular files only, strict JSON."""
