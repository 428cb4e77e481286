"""From disk to a user's own loop: ``run_loader`` is what people hold, ``ranks`` says which batches a process has,
``sessions`` keeps what is open from epoch to epoch, ``pyg`` gives batches torch_geometric's form.
"""
