"""What the project's own machinery costs, as ratios within one run: `make bench`."""
