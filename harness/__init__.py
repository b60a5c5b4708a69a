"""The ground that both runners and the pipeline stand on. Nothing here imports jax or torch."""
