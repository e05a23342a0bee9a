"""What this project costs, measured beside its peers in the same run. `python -m benchmarks [NAME …] [--quick]`.

A ratio to a peer that ran a second ago on the same machine says something; a time alone says how loaded the machine was. So
every module here measures interleaved rounds of both, prints medians, and checks the goals that docs/benchmarks.md lists. Nothing of
it is imported by the product.
"""
