"""Studies that decisions rest on. Each has a page in docs/studies/ and a record in results/published/."""
