"""A fleet of this machine and a model that is trained on it: packaged inventory and deployment, and the demo's own key."""
