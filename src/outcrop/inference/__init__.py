"""Inference: ``task`` checks what is asked for, ``run`` computes it and writes it.

``steps`` says which layers are computed for which node types, from which ``inputs``. ``layerwise`` computes one step,
a ``target_layer``, in parts that ``layer_sums`` and, with types, ``typed_sums`` add up and ``division`` makes fit the
budget; ``edge_counts`` says which rows are wanted often, ``activations`` keeps what a layer gives. ``export`` writes
the result. ``scored`` says how a model is scored: ``stack`` knows models that are stacks of known layers, ``whole``
takes any other module.
"""
