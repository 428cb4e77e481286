"""Models: ``sparse`` (products of CSR blocks), ``layers`` on them, ``models``, ``checkpoint`` (a model on disk).

Of graphs with node and edge types: ``schema`` (what a model needs to know of one), ``typed_layers``, ``typed``,
``typed_models`` and ``hgt``, ``made_rows`` (rows of nodes that have none).
``convs`` has torch_geometric's layers, imported without torch's compiler; ``adam`` is the optimizer.
"""
