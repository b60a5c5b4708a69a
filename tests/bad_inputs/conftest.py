"""Configure Hypothesis: few examples, always the same; or with --hypothesis-profile many, thousands of new ones."""

from hypothesis import HealthCheck, settings

# Without a deadline, as a shared machine is slow at times.
FEW = settings(max_examples=20, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("few", FEW)
settings.register_profile("many", FEW, max_examples=1000, derandomize=False, print_blob=True)
settings.load_profile("few")  # pytest's option --hypothesis-profile is read later
