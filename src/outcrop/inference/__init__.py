"""Inference: ``run`` checks what is asked for, computes it and writes it; ``layerwise`` computes layer by layer for all
nodes, in parts that ``layer_sums`` adds up, and ``export`` writes the result. ``scored`` says how a model is scored:
``stack`` knows models that are stacks of known layers, ``whole`` takes any other module.
"""
