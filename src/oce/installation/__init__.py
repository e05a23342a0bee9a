"""The trusted startup YAML of one Installation: read it, judge it, compose the Drivers it selects.

The only place that instantiates Drivers. Errors name the path of the wrong key and never a value (mission document 002).
"""
