"""`occ up | down | status | doctor | demo`: the single-machine composition. It starts programs; it decides nothing they decide."""
