"""Models: ``sparse`` (products of CSR blocks), ``layers`` on them, ``models``, ``checkpoint`` (a model on disk).

``convs`` has torch_geometric's layers, imported without torch's compiler; ``adam`` is the optimizer.
"""
