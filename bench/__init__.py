"""What the project's own machinery costs, side by side in one run: `make bench`; and what its intervals are worth."""
