"""What this machine can do, and what follows from it."""
