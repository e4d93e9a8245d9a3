"""Rules, images, hardware, known models, speculators, fitted factors and measurements, as data with sources."""
