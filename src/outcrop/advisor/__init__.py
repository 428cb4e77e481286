"""What this machine can do, and what follows from it: ``auto`` chooses memory, mode and disk space for a user,
``epochs`` how many are prepared at a time, by the model in ``cost`` and a look at a few batches; ``counting`` counts
all of an epoch, ``offers`` compares machines by it. ``machine`` measures.
"""
