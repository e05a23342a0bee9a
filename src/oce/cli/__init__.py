"""`occ`: the command line. It knows only `oce.client`."""
