"""Inference: ``task`` checks what is asked for, ``run`` computes it and writes it.

``layerwise`` computes layer by layer for all nodes, in parts that ``layer_sums`` adds up and ``division`` makes fit the
budget; ``edge_counts`` says which rows are wanted often, ``activations`` keeps what a layer gives. ``export`` writes
the result. ``scored`` says how a model is scored: ``stack`` knows models that are stacks of known layers, ``whole``
takes any other module.
"""
