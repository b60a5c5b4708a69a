"""What the project's own machinery costs, side by side in one run: `make bench`. Ratios count, not seconds."""
