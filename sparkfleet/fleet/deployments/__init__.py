"""Use-cases of deployments: apply, follow, describe, delete, roll back."""
