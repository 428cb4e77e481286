"""Training: ``loop`` learns, ``evaluate`` scores, ``checks`` refuses what cannot work. ``rates``, ``callbacks``,
``weights`` (of classes), ``objectives`` (names of losses and metrics), ``metrics`` (which computes them) and
``early_stopping`` are what the loop is made of, ``last_checkpoint`` is where it goes on from. Where several processes
train together (:mod:`outcrop.runtime.group`), ``steps`` adds up their gradients, and ``processes`` says what they make
of the options.

``batch_request`` says which batches a training asks for, ``supply`` where they come from: a run, ``pools`` of a few
epochs each, which a process with ``background`` prepares meanwhile, rows that mode ``online`` writes ahead (``spool``),
or drawing as they are needed.
"""
