"""Mode ``online``: batches drawn while training. ``hotness`` counts what they want, ``tiers`` says what lies where,
``static_cache`` keeps the hottest rows, ``session`` opens all of it.
"""
