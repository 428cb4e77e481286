"""Mode ``online``: batches drawn while training. ``hotness`` counts what they want, ``cache_plan`` says what lies
where, ``static_cache`` keeps the hottest rows, ``feeder`` reads the others while batches are drawn, ``session`` opens
all of it.
"""
