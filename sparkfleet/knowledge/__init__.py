"""What is known: rules, images, hardware, speculators and measurements, as data files with their sources."""
