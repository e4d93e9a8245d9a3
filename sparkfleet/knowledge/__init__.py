"""What is known: rules, hardware, images and measurements, as data with sources."""
