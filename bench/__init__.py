"""What the project's own clock costs, as ratios within one run: `make bench`."""
