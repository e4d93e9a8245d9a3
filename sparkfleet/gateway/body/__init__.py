"""Bodies of requests: how many bytes may be held, and how long ones are read without holding up other clients."""
