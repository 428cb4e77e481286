"""From disk to tensors: ``open`` opens a ``session`` of one of the ``modes``, which gets its batches from ``feeders``
into ``buffers`` and makes tensors of them with ``transfer``. ``online`` has what mode ``online`` adds, ``needs`` says
which memory budgets are enough.

What people hold: ``run_loader``, over one of the ``sources``; ``ranks`` says which batches a process has, ``sessions``
keeps what is open from epoch to epoch, ``pyg`` gives batches torch_geometric's form.
"""
