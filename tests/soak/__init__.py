"""Random sequences of commands on shared folders, disturbed, against an oracle: ``python -m tests.soak``."""
