"""Batches are drawn: ``sampler`` over a graph in ``topology``, from ``seeds``, a ``wave`` at a time; ``gpu`` the same
on a GPU, ``partitioned`` among resident partitions, ``link_seeds`` for edges to be predicted, ``external`` for batches
that another program drew.
"""
