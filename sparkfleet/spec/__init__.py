"""What people write: `inventory.yaml` and `deployments/*.yaml`, each error with its line and field."""
