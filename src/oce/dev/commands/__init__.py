"""`occ up | down | status | doctor | demo`: what a person types to run one machine, one module each, loaded when it is typed."""
