"""Effects through Ray and Ray Serve."""
